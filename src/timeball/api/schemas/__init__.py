"""What comes in and goes out, as Pydantic models, a file for each thing they tell of."""
