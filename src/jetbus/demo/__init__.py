"""The demo: a simulated plant on a bus of its own, with a journal and with Spark. ``jet demo`` shows it.

``demo.running_demo`` is all of it, ``plant.PlantOwner`` the plant alone, for any bus. Nothing is imported here, so that
the processes of the demo load only their part.
"""
