"""Serve a folder on this machine alone and open it in the browser."""
import sys
import webbrowser
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer


def main(folder, port=8000):
    with ThreadingHTTPServer(("127.0.0.1", int(port)), partial(SimpleHTTPRequestHandler, directory=folder)) as server:
        address = f"http://127.0.0.1:{port}/"
        print(f"Serving the book at {address} (stop with Ctrl-C)")
        webbrowser.open(address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main(*sys.argv[1:])
