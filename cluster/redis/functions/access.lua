-- Users and roles: documents in a hash of each kind, and their names in order in a sorted set.

local publish, register, in_parts = library.publish, library.register, library.in_parts
local live = nodes.live

-- Make changes, each for itself: name, document before, document after; '' = there is none. All nodes get those that
-- were made. It works without memory, too: a right can be withdrawn. Returns 1 for each that was made, and 0 for one
-- that has another document before it.
register('change_access', {'allow-oom'}, function(prefix, node, kind, changes)
  if not live(prefix, node) then
    return {'gone'}
  end
  local key, listed = prefix .. kind .. 's', cmsgpack.unpack(changes)
  local made, reported = {}, {}
  for i = 1, #listed, 3 do
    local name, before, after = listed[i], listed[i + 1], listed[i + 2]
    local is_made = (redis.call('HGET', key, name) or '') == before
    made[#made + 1] = is_made and 1 or 0
    if is_made then
      if after == '' then
        redis.call('HDEL', key, name)
        redis.call('ZREM', key .. ':names', name)
      else
        redis.call('HSET', key, name, after)
        redis.call('ZADD', key .. ':names', 0, name)
      end
      reported[#reported + 1], reported[#reported + 2] = name, after
    end
  end
  if reported[1] then
    publish(prefix .. 'all', cmsgpack.pack({'access', kind, reported}))
  end
  return {'ok', made}
end)

register('page_access', {'no-writes', 'allow-oom'}, function(prefix, kind, after, beginning, most)
  local key = prefix .. kind .. 's'
  local from = after >= beginning and '(' .. after or '[' .. beginning
  local names = redis.call('ZRANGE', key .. ':names', from, '[' .. beginning .. '\255', 'BYLEX', 'LIMIT', 0, most)
  return {names, names[1] and in_parts('HMGET', key, names) or {}}
end)
