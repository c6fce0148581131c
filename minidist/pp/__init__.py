"""The pipeline's workshop: schedules, what goes through them, and what `minidist/pipeline.py` claims."""
