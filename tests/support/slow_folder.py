"""An empty folder on a file system whose server answers once it is told to: slow_folder.py PATH, as root, a line on stdin.

The kernel's FUSE protocol, as linux/fuse.h has it, by hand: what a stat() of the folder needs and no more.
"""
import ctypes
import errno
import os
import stat
import struct
import sys
import tempfile
import threading
import time

LOOKUP, FORGET, GETATTR, INIT, INTERRUPT, DESTROY = 1, 2, 3, 26, 36, 38
HEADER, REPLY = struct.Struct("<IIQQIIII"), struct.Struct("<IiQ")
FOLDER_MODE, AN_HOUR_S = 0o40755, 3600


def started(minor):
    return struct.pack("<IIIIHHIIHHI7I", 7, min(minor, 31), 65536, 0, 0, 0, 65536, 1, 0, 0, 0, *[0] * 7)


def attributes():
    now = int(time.time())
    return struct.pack("<QII6Q10I", AN_HOUR_S, 0, 0, 1, 0, 0, now, now, now, 0, 0, 0, FOLDER_MODE, 2, 0, 0, 0, 4096, 0)


def serve(device, told):
    while True:
        request = os.read(device, 1 << 17)
        _, code, unique, *_ = HEADER.unpack_from(request)
        if code in (FORGET, INTERRUPT):
            continue
        if code == GETATTR:
            told.wait()
        error, body = {INIT: lambda: (0, started(struct.unpack_from("<I", request, HEADER.size + 4)[0])), GETATTR: lambda: (0, attributes()),
                       LOOKUP: lambda: (-errno.ENOENT, b""), DESTROY: lambda: (0, b"")}.get(code, lambda: (-errno.ENOSYS, b""))()
        os.write(device, REPLY.pack(REPLY.size + len(body), error, unique) + body)


def fuse_device():
    """In a container there is mostly no name for it."""
    if os.path.exists("/dev/fuse"):
        return os.open("/dev/fuse", os.O_RDWR)
    with tempfile.TemporaryDirectory() as folder:
        os.mknod(f"{folder}/fuse", 0o600 | stat.S_IFCHR, os.makedev(10, 229))
        return os.open(f"{folder}/fuse", os.O_RDWR)


def main():
    path = sys.argv[1]
    os.makedirs(path, exist_ok=True)
    device, libc = fuse_device(), ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if libc.mount(b"hvd-slow", path.encode(), b"fuse", 0, options.encode()) != 0:
        raise OSError(ctypes.get_errno(), f"mount {path}")
    told = threading.Event()
    threading.Thread(target=serve, args=(device, told), daemon=True).start()
    print("mounted", flush=True)
    sys.stdin.readline()
    told.set()
    sys.stdin.read()


main()
