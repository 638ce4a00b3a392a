"""The dashboard: pages made on the server, for people; every change goes through the HTTP API's own routes."""
