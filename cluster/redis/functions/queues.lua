-- The queues of sessions, their entries and their ends; and the expired messages that full queues drop, those of groups
-- included.
--
-- An entry is done when its client has acknowledged it, or when its message went back to its group. Entries that are
-- done leave the queue from its head. One that is done while an earlier one is not has the mark `d` in `st:<cid>`, and
-- no message any more. It is no message that waits: no limit counts it, in messages or in bytes.

local AT_ONCE_BYTES = library.AT_ONCE_BYTES
local bytes_of = packed_sessions.bytes_of
local FLAGS, clear, drop_first = packed_sessions.FLAGS, packed_sessions.clear, packed_sessions.drop_first
local has, length_of, rare, remove = packed_sessions.has, packed_sessions.length_of, packed_sessions.rare,
  packed_sessions.remove
local set_rare, slice = packed_sessions.set_rare, packed_sessions.slice

local queues = {
  LOOK = 5000,                -- entries that one call reads to find expired messages: Redis executes nothing else
  FAR = 9007199254740991,     -- later than all deadlines
}

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

-- How many entries of a queue are done.
function queues.done(session)
  return session.marks > 0 and session.acked or 0
end

-- The key with the marks of the entries.
function queues.states_of(session)
  return session.prefix .. 'st:' .. session.cid
end

-- PUBREC is received for the entry with this number. `size`: its bytes, 0 = they are needed.
function queues.receive(session, number, size)
  if number >= session.head and redis.call('HSETNX', queues.states_of(session), number, 'r') == 1 then
    session.marks, session.changed = session.marks + 1, true
    if size > 0 then
      clear(session, number - session.head, size)
    end
  end
end

-- Mark the entry with this number as done.
function queues.finish(session, number)
  local states = queues.states_of(session)
  local mark = redis.call('HGET', states, number)
  if mark ~= 'd' then
    redis.call('HSET', states, number, 'd')
    session.acked, session.changed = queues.done(session) + 1, true
    session.marks = session.marks + (mark and 0 or 1)
    clear(session, number - session.head)
  end
end

-- Remove the entries before the number `head`, and those after them that are done. `size`: bytes of the entries before
-- `head`, if the caller knows them.
function queues.drop_done(session, head, size)
  local states, dropped = queues.states_of(session), head - session.head
  for number = session.head, session.marks > 0 and head - 1 or 0 do
    if session.acked > 0 and redis.call('HGET', states, number) == 'd' then
      session.acked, size = session.acked - 1, nil             -- it was done before
    end
    session.marks = session.marks - redis.call('HDEL', states, number)
  end
  drop_first(session, dropped, size)
  local more = head
  while queues.done(session) > 0 and redis.call('HGET', states, more) == 'd' do
    session.marks, session.acked = session.marks - redis.call('HDEL', states, more), session.acked - 1
    more = more + 1
  end
  drop_first(session, more - head)
  if more > session.head then
    session.head, session.changed = more, true
  end
  if has(session, FLAGS.RESTING) then
    queues.wake(session)
  end
end

-- Whether a queue has too much. It may have one message with any number of bytes, but for its tenant: `quota`.
function queues.is_over(length, bytes, most, most_bytes, quota)
  return length > most or (bytes > most_bytes and length > 1) or (bytes > quota and length > 0)
end

-- Remove the entries behind the first `kept` that are done: their messages went back to their groups.
function queues.remove_returned(session, kept)
  local states, returned = queues.states_of(session), {}
  local known = redis.call('HGETALL', states)
  for i = 1, #known, 2 do
    local index = tonumber(known[i]) - session.head
    if known[i + 1] == 'd' and index >= kept then
      returned[#returned + 1] = index
      redis.call('HDEL', states, known[i])
    end
  end
  if returned[1] then
    table.sort(returned)
    remove(session, returned)
    session.marks, session.acked = session.marks - #returned, session.acked - #returned
  end
end

-- Where a call has looked for expired messages in a full queue: the field `y` of a group, or the rare one of a session.
-- Four numbers: a time before which none expires; the place from which the next call looks on, 0 = all have been looked
-- at; the earliest deadline before that place; an epoch. For a session the place is an index in the queue, and with
-- another epoch than its own the field means nothing, since only queues of absent clients are looked at.
function queues.looks(field, epoch)
  local earliest, at, seen, of = (field or ''):match('^(%d+) (%d+) (%d+) (%d+)$')
  if tonumber(of) ~= epoch then
    return 0, 0, queues.FAR
  end
  return tonumber(earliest), tonumber(at), tonumber(seen)
end

-- The field.
function queues.looked(earliest, at, seen, epoch)
  return string.format('%.0f %.0f %.0f %.0f', earliest, at, seen, epoch)
end

-- A message with this deadline was added. Returns another value of a field, or nil.
function queues.looked_with(field, deadline, epoch)
  local earliest, at, seen = queues.looks(field, epoch)
  if deadline < math.max(earliest, seen) then
    return queues.looked(math.min(earliest, deadline), at, at > 0 and math.min(seen, deadline) or seen, epoch)
  end
end

-- A message with this deadline was added to the queue of an absent client.
function queues.note_deadline(session, deadline)
  local field = rare(session, 'y')
  local changed = field and queues.looked_with(field, deadline, session.epoch)
  if changed then
    set_rare(session, 'y', changed)
  end
end

-- Remove the messages of an absent client that have expired, wherever they stand behind the first `kept`. A call reads
-- so many entries, and the next one looks on. Returns how many, and whether there may be more.
function queues.remove_expired(session, kept, time)
  local earliest, at, seen = queues.looks(rare(session, 'y'), session.epoch)
  if earliest > time then
    return 0, false
  end
  local length = length_of(session)
  if at <= kept or at >= length then
    at, seen = kept, queues.FAR
  end
  local last, read, freed, expired = at + queues.LOOK, 0, 0, {}
  local step = math.max(1, math.min(500, math.floor(AT_ONCE_BYTES * length / math.max(bytes_of(session), 1))))
  while at < math.min(length, last) and read < AT_ONCE_BYTES do
    local values = slice(session, at, at + step - 1)
    for i = 1, #values do
      local first = values[i]:byte()
      local is_of_group = math.floor(first / 16) == 3 and first % 2 == 1
      local deadline = not is_of_group and queues.deadline_of(values[i])
      if deadline and deadline <= time then
        expired[#expired + 1], freed = at + i - 1, freed + #values[i]
      elseif deadline then
        seen = math.min(seen, deadline)
      end
      read = read + #values[i]
    end
    at = at + #values
  end
  if expired[1] then
    remove(session, expired, freed)
  end
  local looks_on = at < length
  set_rare(session, 'y', looks_on and queues.looked(0, at - #expired, seen, session.epoch)
    or queues.looked(seen, 0, queues.FAR, session.epoch))
  return #expired, looks_on
end

return queues
