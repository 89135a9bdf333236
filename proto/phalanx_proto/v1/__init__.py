"""The generated messages and services of protocol version 1."""
