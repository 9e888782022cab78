"""The link, as websockets: the server, its connections, the handler interface, and the client."""
