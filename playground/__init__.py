"""The playground: a static page that runs evt in the browser."""
