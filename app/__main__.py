"""``python -m app`` is ``elsewise``."""

from app.cli import main

if __name__ == "__main__":
    main()
