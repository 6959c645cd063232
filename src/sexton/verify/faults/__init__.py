"""What is broken on purpose: when (`schedule`), and how each kind of fault is begun, ended and healed."""
