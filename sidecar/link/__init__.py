"""The sidecar's end of the link: the server, one connection, what handlers see, and the client."""
