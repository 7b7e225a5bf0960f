-- The bytes of messages in the queues of each tenant: sessions and groups in Redis, and what nodes have themselves. The
-- hash `queued:tenants` has their sum, by the prefix `$tenant/NAME/`; a call writes it once. The part of a session or a
-- group is its field `b`; the part of a node is in `queued:<id>`.

local call, NOTHING = library.call, library.NOTHING

local tenants = {}

-- The tenant of a client id, as its prefix; nil: it has none. (The first byte costs less to compare than a pattern, and
-- `<` would compare texts as the locale of Redis does.)
function tenants.of(cid)
  return cid:byte() == 36 and cid:match('^%$tenant/[^/]+/') or nil
end

function tenants.of_group(group)
  return group:find('$tenant/', 1, true) and group:match('^%$share/[^/]+/(%$tenant/[^/]+/)') or nil
end

-- The bytes of a tenant change by this number; the caller writes the part that changes.
function tenants.add(tenant, change)
  local changes = call.bytes or {}
  call.bytes = changes
  changes[tenant] = (changes[tenant] or 0) + change
end

-- The bytes of a tenant.
function tenants.total(prefix, tenant)
  local sums, changes = call.sums or {}, call.bytes or NOTHING
  call.sums = sums
  sums[tenant] = sums[tenant] or tonumber(redis.pcall('HGET', prefix .. 'queued:tenants', tenant)) or 0
  return sums[tenant] + (changes[tenant] or 0)
end

-- What the block of a commit has of limits: tenants and their most bytes, in turn. Returns them by tenant.
function tenants.limits(list)
  local limits = {}
  for i = 1, #list, 2 do
    limits[list[i]] = list[i + 1]
  end
  return limits
end

-- How many bytes may be added for a tenant, or negative. `limits`: tenant -> most bytes; nil: there are none.
function tenants.free(prefix, limits, tenant)
  local most = limits and limits[tenant or '']
  if not most then
    return math.huge
  end
  return most - tenants.total(prefix, tenant)
end

-- Write what this call has changed. A sum of 0 stays: the queues of a tenant are often empty, and then have something
-- again. `flockmq_queued` removes it.
function tenants.write(prefix)
  if not call.bytes then
    return
  end
  local key = prefix .. 'queued:tenants'
  for tenant, change in pairs(call.bytes) do
    local bytes = change ~= 0 and redis.pcall('HINCRBY', key, tenant, change) or 1
    if type(bytes) == 'table' then
      redis.log(redis.LOG_WARNING, 'FlockMQ found a damaged key, ' .. key .. ': ' .. bytes.err)
    elseif bytes < 0 then
      redis.call('HDEL', key, tenant)
    end
  end
  call.bytes, call.sums = nil, nil
end

-- Write the bytes of a queue into the hash of its session or group, with other fields: names and values in turn.
-- Whatever changes a queue ends here, or in `add_waiting`. `tenant`: its prefix, or nil; `before`: its bytes so far.
local function write_bytes(tenant, key, before, bytes, ...)
  if tenant then
    tenants.add(tenant, bytes - before)
  end
  redis.call('HSET', key, 'b', bytes, ...)
end

-- The bytes that wait in a group.
local function waiting_bytes(prefix, group)
  return tonumber(redis.call('HGET', prefix .. 'g:' .. group, 'b') or 0)
end

-- Add to the bytes that wait in a group.
local function add_waiting(prefix, group, change)
  local tenant = tenants.of_group(group)
  local before = waiting_bytes(prefix, group)
  write_bytes(tenant, prefix .. 'g:' .. group, before, before + change)
end

-- Nothing waits in a group any more.
local function empty_waiting(prefix, group)
  add_waiting(prefix, group, -waiting_bytes(prefix, group))
end

library.at_end[#library.at_end + 1] = tenants.write
tenants.add_waiting = add_waiting
tenants.empty_waiting = empty_waiting
tenants.waiting_bytes = waiting_bytes
tenants.write_bytes = write_bytes
return tenants
