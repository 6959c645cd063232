"""Speed claims: each benchmark runs Sexton and its named peer in the same run and prints the ratio."""
