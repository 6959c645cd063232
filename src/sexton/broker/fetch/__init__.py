"""What the Fetch API needs: incremental sessions, and its response as bytes."""
