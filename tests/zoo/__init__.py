"""Hand-written ViTs in ten styles, as tutorials have them, and the mistakes that learners make."""
