"""Where the truth lives: PostgreSQL."""
