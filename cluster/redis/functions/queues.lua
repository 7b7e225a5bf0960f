-- The queues of sessions, their entries and their ends; and the expired messages that full queues drop, those of groups
-- included.
--
-- An entry is done when its client has acknowledged it, or when its message went back to its group. Entries that are
-- done leave the queue from its head. One that is done while an earlier one is not has the mark `d` in `st:<cid>`, and
-- no message any more. It is no message that waits: no limit counts it, in messages or in bytes.

local AT_ONCE_BYTES = library.AT_ONCE_BYTES
local write_bytes = tenants.write_bytes

local queues = {
  NO_MESSAGE = '\18\0\0',     -- an entry whose message no client needs any more: QoS 2, and nothing else
  LOOK = 5000,                -- entries that one call reads to find expired messages: Redis executes nothing else
  FAR = 9007199254740991,     -- later than all deadlines
}

-- The bytes of an entry, as the field `b` of its session counts them.
function queues.size_of(entry)
  return entry == queues.NO_MESSAGE and 0 or #entry
end

-- The deadline of a message or of an entry, in milliseconds of the cluster's clock; nil: it does not expire.
function queues.deadline_of(entry)
  local at, first = 1, entry:byte(1)
  if first and math.floor(first / 16) == 3 then            -- head of an entry: group and place, identifiers
    at = first % 2 == 1 and 12 + struct.unpack('<H', entry, 10) or 2
    if math.floor(first / 4) % 2 == 1 then
      at = at + 2 + struct.unpack('<H', entry, at)
    end
    first = entry:byte(at)
  end
  if first and math.floor(first / 16) == 5 then            -- key
    at = at + 13
    first = entry:byte(at)
  end
  if first and math.floor(first / 16) == 4 then            -- failures
    at = at + 4
    first = entry:byte(at)
  end
  if first and math.floor(first / 16) == 2 and math.floor(first / 8) % 2 == 1 then
    local low, high = struct.unpack('<I4I4', entry, at + 7)
    return high * 4294967296 + low
  end
end

-- How many entries of a queue are done. `marks`: entries of its `st`; without any, none is done.
function queues.done(key, marks)
  return marks > 0 and tonumber(redis.call('HGET', key, 'a') or 0) or 0
end

-- Mark the entry with this number, and this index in the queue, as done. Returns the bytes that it had, the marks that
-- this adds, and the entries that it adds to those that are done: 0 if it was done.
function queues.finish(queue, states, number, index)
  local mark = redis.call('HGET', states, number)
  if mark == 'd' then
    return 0, 0, 0
  end
  redis.call('HSET', states, number, 'd')
  local entry = redis.call('LINDEX', queue, index)
  if entry and entry ~= queues.NO_MESSAGE then
    redis.call('LSET', queue, index, queues.NO_MESSAGE)
  end
  return entry and queues.size_of(entry) or 0, mark and 0 or 1, 1
end

-- Remove the entries of a queue from its first one to `head`, and those after it that are done. `bytes`, `marks` and
-- `acked` are those of the queue, without what entries before `head` had of the last two. `noted`: the number of done
-- entries that the session has noted. `size`: bytes of the entries before `head`, if the caller knows them; else they
-- are read, and Lua hashes each byte. `resting`: see `rest`.
function queues.drop_done(prefix, tenant, cid, first, head, bytes, marks, acked, noted, size, resting)
  local states, queue, known, before = prefix .. 'st:' .. cid, prefix .. 'q:' .. cid, first, bytes
  if size then
    bytes, known = bytes - size, head
  end
  while acked > 0 and redis.call('HGET', states, head) == 'd' do
    marks = marks - redis.call('HDEL', states, head)
    acked = acked - 1
    head = head + 1
  end
  if known > first then
    redis.call('LTRIM', queue, known - first, -1)
  end
  if head > known then
    for _, value in ipairs(redis.call('LPOP', queue, head - known) or {}) do
      bytes = bytes - queues.size_of(value)
    end
  end
  if acked == noted then
    write_bytes(tenant, prefix .. 's:' .. cid, before, bytes, 'h', head, 'z', marks)
  else
    write_bytes(tenant, prefix .. 's:' .. cid, before, bytes, 'h', head, 'z', marks, 'a', acked)
  end
  if resting and resting ~= '' then
    queues.wake(prefix, cid, resting, acked)
  end
end

-- Whether a queue has too much. It may have one message with any number of bytes, but for its tenant: `quota`.
function queues.is_over(length, bytes, most, most_bytes, quota)
  return length > most or (bytes > most_bytes and length > 1) or (bytes > quota and length > 0)
end

-- Remove the entry at an index of a queue, from 0. Returns its bytes.
function queues.remove(queue, index, length)
  if index == 0 then
    return #redis.call('LPOP', queue)
  end
  if index == length - 1 then
    return #redis.call('RPOP', queue)
  end
  local size = #redis.call('LINDEX', queue, index)
  redis.call('LSET', queue, index, '')
  redis.call('LREM', queue, index < length / 2 and 1 or -1, '')
  return size
end

-- Remove the entries behind the first `kept` that are done: their messages went back to their groups. Returns how many.
function queues.remove_returned(prefix, cid, head, kept, length)
  local queue, states, returned = prefix .. 'q:' .. cid, prefix .. 'st:' .. cid, {}
  local known = redis.call('HGETALL', states)
  for i = 1, #known, 2 do
    local number = tonumber(known[i])
    if known[i + 1] == 'd' and number >= head + kept then
      returned[#returned + 1] = number
    end
  end
  table.sort(returned)
  for i = #returned, 1, -1 do
    queues.remove(queue, returned[i] - head, length)
    redis.call('HDEL', states, returned[i])
    length = length - 1
  end
  return #returned
end

-- Where a call has looked for expired messages in a full queue: the field `y` of its session or group. Three numbers: a
-- time before which none expires; the place from which the next call looks on, 0 = all have been looked at; the
-- earliest deadline before that place. For a session the place is an index in the queue, and its epoch follows: with
-- another epoch the field means nothing, since only queues of absent clients are looked at.
function queues.looks(field, epoch)
  local earliest, at, seen, of = (field or ''):match('^(%d+) (%d+) (%d+) (%d+)$')
  if of ~= epoch then
    return 0, 0, queues.FAR
  end
  return tonumber(earliest), tonumber(at), tonumber(seen)
end

function queues.note_looks(key, epoch, earliest, at, seen)
  redis.call('HSET', key, 'y', string.format('%.0f %.0f %.0f %s', earliest, at, seen, epoch))
end

-- A message with this deadline was added to the queue of an absent client, or to a group.
function queues.note_deadline(key, deadline, is_group)
  local state = redis.call('HMGET', key, 'y', 'e')
  if state[1] then
    local epoch = is_group and '0' or state[2]
    local earliest, at, seen = queues.looks(state[1], epoch)
    if deadline < math.max(earliest, seen) then
      queues.note_looks(key, epoch, math.min(earliest, deadline), at, at > 0 and math.min(seen, deadline) or seen)
    end
  end
end

-- Remove the messages of an absent client that have expired, wherever they stand behind the first `kept`. A call reads
-- so many entries, and the next one looks on. `field`: `y`. Returns how many, their bytes, and whether there may be
-- more.
function queues.remove_expired(key, queue, field, epoch, kept, length, bytes, time)
  local earliest, at, seen = queues.looks(field, epoch)
  if earliest > time then
    return 0, 0, false
  end
  if at <= kept or at >= length then
    at, seen = kept, queues.FAR
  end
  local last, read, removed, freed = at + queues.LOOK, 0, 0, 0
  local step = math.max(1, math.min(500, math.floor(AT_ONCE_BYTES * length / math.max(bytes, 1))))
  while at < math.min(length, last) and read < AT_ONCE_BYTES do
    local values = redis.call('LRANGE', queue, at, at + step - 1)
    for i = 1, #values do
      local first = values[i]:byte()
      local is_of_group = math.floor(first / 16) == 3 and first % 2 == 1
      local deadline = not is_of_group and queues.deadline_of(values[i])
      if deadline and deadline <= time then
        redis.call('LSET', queue, at + i - 1, '')
        removed, freed = removed + 1, freed + #values[i]
      elseif deadline then
        seen = math.min(seen, deadline)
      end
      read = read + #values[i]
    end
    at = at + #values
  end
  if removed > 0 then
    redis.call('LREM', queue, 0, '')
  end
  if at < length then
    queues.note_looks(key, epoch, 0, at - removed, seen)
    return removed, freed, true
  end
  queues.note_looks(key, epoch, seen, 0, queues.FAR)
  return removed, freed, false
end

return queues
