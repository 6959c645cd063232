"""The judge of histories. It imports `history` alone: it shares no code with what it judges."""
