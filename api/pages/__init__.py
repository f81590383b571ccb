"""The pages: Jinja2 templates with charts drawn as SVG on the server; readable without a script."""
