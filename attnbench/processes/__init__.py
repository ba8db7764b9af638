"""Child processes: tasks, the pool that runs them, and the child's side. No torch."""
