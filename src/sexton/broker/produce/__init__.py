"""What the Produce API needs: transactions, decompression, refused batches, and its response as bytes."""
