"""Messages between the driver and its tasks, and what runs in a task."""
