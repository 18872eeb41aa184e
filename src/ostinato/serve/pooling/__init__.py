"""``POST /pooling``: images and videos in, one matrix of embeddings for each out."""
