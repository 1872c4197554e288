"""`import elsewise` gives `runtime`: the same module under the name of the distribution, loaded as lazily."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from runtime import *  # noqa: F403  # the type checker sees each name; at run time nothing is loaded before it is used
else:
    import runtime

    sys.modules[__name__] = runtime
