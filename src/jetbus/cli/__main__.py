"""``python -m jetbus.cli`` is ``jet``."""

from jetbus.cli.main import main

if __name__ == "__main__":
    main()
