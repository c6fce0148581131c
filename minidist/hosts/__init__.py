"""Several hosts on one machine: namespaces of Linux, joined by links with a rate, on which MPI's ranks run over TCP."""
