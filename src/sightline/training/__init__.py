"""The loop and its parts: objectives, optimizer, schedules, checkpoints, journal."""
