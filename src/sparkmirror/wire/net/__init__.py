"""Sockets: connections, frames, and limits for what is read from them."""
