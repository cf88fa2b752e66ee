"""tegula inside other libraries. Each is imported only when its module here is."""
