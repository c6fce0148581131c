"""What the operating system gives: files, processes, what Unix has and Windows lacks."""
