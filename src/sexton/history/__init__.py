"""What a history is: what clients asked a cluster for, and what came of it. Nothing here knows a cluster or a judge."""
