"""Commands by menu and key: the table of actions, the menus, the page of shortcuts, Escape."""
