"""The dashboard: pages rendered on the server; every change goes through the HTTP API's own routes."""
