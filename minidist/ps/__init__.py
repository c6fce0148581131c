"""Parts of the parameter server that are not its algorithm; that is in minidist/parameter_server.py."""
