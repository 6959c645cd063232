"""What may go and what must stay: the rules, the reference compactor, and when a log is due for cleaning."""
