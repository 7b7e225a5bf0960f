import time
from contextlib import ExitStack
from tests.cluster.test_groups_over_shards import *
from tests.cluster.test_groups_over_shards import three, cluster
def dump(three):
    for i, s in enumerate(three):
        c = s.client()
        for k in sorted(c.keys("*")):
            k = k.decode() if isinstance(k, bytes) else k
            t = c.type(k)
            if any(x in k for x in ("delayed", "returning", "once", "grace", ":g", "in_doubt", ":q:","wills")):
                v = {b"hash": c.hgetall, b"zset": lambda k: c.zrange(k,0,-1,withscores=True), b"set": c.smembers, b"list": lambda k: [x[:40] for x in c.lrange(k,0,-1)][:5]+[c.llen(k)], b"string": c.get}[t if isinstance(t,bytes) else t.encode()](k)
                print(i, k, str(v)[:300])
def test_it(cluster, three):
    with ExitStack() as stack:
        gone = [member(stack, cluster, "a", name, 1) for name in ELSEWHERE]
        publish_all(cluster, 60, 1)
        for c in gone: seen(c)
        dump(three)
        for client in gone:
            client.close()
        time.sleep(3)
        print("-----")
        dump(three)
        last = member(stack, cluster, "b", THERE[0], 1)
        got = []
        for _ in range(20): answer(last, got)
        print(sorted(got))
        dump(three)
        assert 0
