"""OpenStack Swift with its S3 API, in one process; a script for a Python that has Swift installed.

``python swift_main.py DIRECTORY`` listens on free ports of the loopback interface, prints the port of the S3
API, and runs until it is terminated. Account, container and object servers and the proxy share the process.
"""

import sys
from pathlib import Path
from typing import Any

import eventlet

eventlet.monkey_patch()

from eventlet import wsgi  # noqa: E402  # after eventlet has patched the sockets
from swift.common import utils  # noqa: E402
from swift.common.ring import RingBuilder  # noqa: E402
from swift.common.wsgi import SwiftHttpProtocol, loadapp  # noqa: E402

# Every filter of the pipeline that needs no options of its own, and the name of its entry point.
_FILTERS = {
    "catch_errors": "catch_errors",
    "gatekeeper": "gatekeeper",
    "cache": "memcache",
    "listing_formats": "listing_formats",
    "copy": "copy",
    "slo": "slo",
    "dlo": "dlo",
    "versioned_writes": "versioned_writes",
}

_PROXY = """
[DEFAULT]
swift_dir = {directory}
[pipeline:main]
pipeline = catch_errors gatekeeper cache listing_formats s3api tempauth copy slo dlo
  versioned_writes proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
""" + "".join(f"[filter:{name}]\nuse = egg:swift#{entry}\n" for name, entry in _FILTERS.items())

_STORAGE = """
[DEFAULT]
swift_dir = {directory}
devices = {directory}
mount_check = false
disable_fallocate = true
fallocate_reserve = 0
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""


def serve(directory: Path) -> int:
    """Start the four servers and return the port of the proxy."""
    (directory / "disk").mkdir()
    (directory / "swift.conf").write_text("[swift-hash]\nswift_hash_path_suffix = tests\n")
    (directory / "memcache.conf").write_text("[memcache]\nmemcache_servers =\n")
    utils.set_swift_dir(str(directory))
    utils.validate_hash_conf()
    servers: dict[str, Any] = {kind: _listen() for kind in ("account", "container", "object", "proxy")}
    for kind in ("account", "container", "object"):
        ring = RingBuilder(1, 1, 0)
        port = servers[kind].getsockname()[1]
        ring.add_dev(
            {"id": 0, "region": 1, "zone": 1, "weight": 1, "ip": "127.0.0.1", "port": port, "device": "disk"}
        )
        ring.rebalance()
        ring.get_ring().save(str(directory / f"{kind}.ring.gz"))
    for kind, server in servers.items():
        conf = directory / f"{kind}.conf"
        text = _PROXY if kind == "proxy" else _STORAGE
        conf.write_text(text.format(directory=directory, kind=kind))
        app = loadapp(str(conf), allow_modify_pipeline=kind == "proxy")
        eventlet.spawn(wsgi.server, server, app, protocol=SwiftHttpProtocol, log_output=False)
    return servers["proxy"].getsockname()[1]


def _listen() -> Any:
    return eventlet.listen(("127.0.0.1", 0))


if __name__ == "__main__":
    print(serve(Path(sys.argv[1]).resolve()), flush=True)
    while True:
        eventlet.sleep(3600)
