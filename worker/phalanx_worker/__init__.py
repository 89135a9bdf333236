"""The worker: the engine that runs JAX, the pool of engines on one machine, and the daemon that serves them."""
