"""The demo: a simulated plant on its own bus, with a journal and Spark. ``jet demo`` shows it.

``demo.run_demo`` starts all of it; ``plant.PlantOwner`` is the plant alone, for any bus. Nothing is imported here, so
that each process of the demo loads only its own part.
"""
