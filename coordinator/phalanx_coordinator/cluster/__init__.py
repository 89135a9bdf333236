"""The cluster file: who may take part, how each is reached, and every fault in it at once. Its endpoints are private."""
