"""What shows that transactions are whole: every client, every question of the docs, kills, delays, tools."""
