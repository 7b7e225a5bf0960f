-- Sessions as Redis has them: `s:<cid>` is one text with the fields of a session and its short queue. A queue that is
-- long, or has a large message, is the list `q:<cid>` until it is empty; rare fields are in the hash `rare:<cid>`.
--
-- A call reads all its sessions with one MGET (`read`), or each when it meets it, and writes those that have changed
-- with one MSET, at its end. So a session that it meets twice has its first change. The two steps that are most
-- frequent change the text of a plain session; all others have a table with its fields (`of`), and set `changed` when
-- they set a field.

local call, AT_ONCE, NOTHING = library.call, library.AT_ONCE, library.NOTHING

local packed_sessions = {
  NO_MESSAGE = '\18\0\0',     -- an entry whose message no client needs any more: QoS 2, and nothing else
}
local NO_MESSAGE = packed_sessions.NO_MESSAGE

local MOST, MOST_BYTES = 8, 1024   -- of a short queue: entries, and bytes with their lengths

-- First are the fields that messages need: queue number of the first entry, incarnation, marks in `st`, those of them
-- that are `d`, flags, bytes of the header. The header has the owner, epoch, the number below which messages may have
-- been sent, fights, seconds of the last change of the owner, protocol level, user, own interval, earlier connections.
-- Then comes the queue: bytes of each entry u32, entry; 0 = NO_MESSAGE. Of a list its bytes f64 stand there.
local FIELDS = '<ddI4I4BI4'
local FIELDS_SIZE = 29
local HEADER = '<Bc0ddBI4BHc0Bc0I4c0'

-- Flags of a session, `flags` being their sum. A plain one has none of those from LISTED on.
local FLAGS = {
  PERSISTENT = 1,
  GROUPED = 2,                -- messages of groups are in its queue
  AWAITED = 4,                -- there is, or was, `in:<cid>`
  LISTED = 8,                 -- the queue is a list
  RARE = 16,                  -- there is `rare:<cid>`
  LIMITED = 32,               -- it has limits of its own: the rare field `m`
  RESTING = 64,               -- it rests in groups: the rare field `r`
}
local LISTED = FLAGS.LISTED

local function has(session, flag)
  return math.floor(session.flags / flag) % 2 == 1
end

-- The number of entries of a short queue, which begins at this place of a text.
local function count_entries(text, at)
  local count = 0
  while at <= #text do
    at, count = at + 4 + struct.unpack('<I4', text, at), count + 1
  end
  return count
end

local function unpacked(prefix, cid, text)
  local head, incarnation, marks, acked, flags, length = struct.unpack(FIELDS, text)
  local owner, epoch, sent, fights, since, level, user, interval, waits = struct.unpack(HEADER, text, FIELDS_SIZE + 1)
  local queue, list_bytes, count = text:sub(FIELDS_SIZE + 1 + length), false, 0
  if math.floor(flags / LISTED) % 2 == 1 then
    list_bytes, queue = struct.unpack('<d', queue), ''
  elseif queue ~= '' then
    count = count_entries(queue, 1)
  end
  return {
    prefix = prefix, cid = cid, head = head, incarnation = incarnation, marks = marks, acked = acked, flags = flags,
    owner = owner, epoch = epoch, sent = sent, fights = fights, since = since, level = level, user = user,
    interval = interval, waits = waits,
    queue = queue,              -- the text of a short queue
    count = count,              -- its entries
    list_bytes = list_bytes,    -- of the messages in a list; false: the queue is short
    changed = call.changed[cid] or false,
  }
end

local function packed(session)
  local owner, user, interval, waits = session.owner, session.user, session.interval, session.waits
  local header = struct.pack(HEADER, #owner, owner, session.epoch, session.sent, math.min(session.fights, 255),
    session.since, session.level, #user, user, #interval, interval, #waits, waits)
  return struct.pack(FIELDS, session.head, session.incarnation, session.marks, session.acked, session.flags, #header)
    .. header .. (session.list_bytes and struct.pack('<d', session.list_bytes) or session.queue)
end

-- ---- the sessions of a call ----

-- Read the sessions of a list at once: of each client id, or of each item that begins with one. `step`: elements of the
-- list for each session.
function packed_sessions.read_each(prefix, list, step)
  local sessions, keys, cids, count = call.sessions, call.keys, call.cids, #call.cids
  local start = count + 1
  prefix = prefix .. 's:'
  for i = 1, #list, step do
    local cid = list[i]
    cid = type(cid) == 'table' and cid[1] or cid
    if sessions[cid] == nil then
      count, sessions[cid] = count + 1, false
      cids[count], keys[count] = cid, prefix .. cid
    end
  end
  for i = start, count, AT_ONCE do
    local found = redis.call('MGET', unpack(keys, i, math.min(i + AT_ONCE - 1, count)))
    for j = 1, #found do
      sessions[cids[i + j - 1]] = found[j]
    end
  end
end

function packed_sessions.read(prefix, list)
  packed_sessions.read_each(prefix, list, 1)
end

local function keep(session)
  local cid = session.cid
  if call.sessions[cid] == nil then
    call.cids[#call.cids + 1], call.keys[#call.keys + 1] = cid, session.prefix .. 's:' .. cid
  end
  call.sessions[cid] = session
  return session
end

-- The session of a client, or nil. An error: it is damaged.
function packed_sessions.of(prefix, cid)
  local session = call.sessions[cid]
  if type(session) == 'table' then
    return session
  end
  -- MGET does not tell a key of another type from none.
  local text = session or redis.call('GET', prefix .. 's:' .. cid)
  return text and keep(unpacked(prefix, cid, text)) or nil
end

-- The incarnation of a session that the call has read and does not change. An error: it is missing, or damaged.
function packed_sessions.incarnation_of(cid)
  local _, incarnation = struct.unpack(FIELDS, call.sessions[cid] or '')
  return incarnation
end

-- A new session without an owner, in place of any other.
function packed_sessions.create(prefix, cid, epoch, incarnation, flags)
  return keep({
    prefix = prefix, cid = cid, head = 1, incarnation = incarnation, marks = 0, acked = 0, flags = flags,
    owner = '', epoch = epoch, sent = 1, fights = 0, since = 0, level = 0, user = '', interval = '', waits = '',
    queue = '', count = 0, list_bytes = false, changed = true,
  })
end

-- Delete a session, also a damaged one.
function packed_sessions.delete(prefix, cid)
  if call.sessions[cid] ~= nil then
    call.sessions[cid] = false
  end
  redis.call('DEL', prefix .. 's:' .. cid, prefix .. 'q:' .. cid, prefix .. 'st:' .. cid, prefix .. 'in:' .. cid,
    prefix .. 'subs:' .. cid, prefix .. 'rare:' .. cid)
end

-- Write what has changed. The call ends.
local function write()
  local cids, sessions, changed, written, count = call.cids, call.sessions, call.changed, {}, 0
  for i = 1, #cids do
    local text = sessions[cids[i]]
    if type(text) == 'table' then
      text = text.changed and packed(text)
    else
      text = changed[cids[i]] and text
    end
    if text then
      written[count + 1], written[count + 2] = call.keys[i], text
      count = count + 2
    end
  end
  for i = 1, count, AT_ONCE do
    redis.call('MSET', unpack(written, i, math.min(i + AT_ONCE - 1, count)))
  end
end

library.at_end[#library.at_end + 1] = write

-- ---- flags and rare fields ----

local function set_flag(session, flag, value)
  if has(session, flag) ~= value then
    session.flags, session.changed = session.flags + (value and flag or -flag), true
  end
end

-- A rare field, or nil.
local function rare(session, name)
  return has(session, FLAGS.RARE) and redis.call('HGET', session.prefix .. 'rare:' .. session.cid, name) or nil
end

local FLAG_OF = {m = FLAGS.LIMITED, r = FLAGS.RESTING}

-- Set a rare field; nil: it goes.
local function set_rare(session, name, value)
  local key, flag = session.prefix .. 'rare:' .. session.cid, FLAG_OF[name]
  if value then
    redis.call('HSET', key, name, value)
    set_flag(session, FLAGS.RARE, true)
  elseif has(session, FLAGS.RARE) then
    redis.call('HDEL', key, name)
    set_flag(session, FLAGS.RARE, redis.call('EXISTS', key) == 1)
  end
  if flag then
    set_flag(session, flag, value ~= nil)
  end
end

-- ---- the queue ----

local function size_of(entry)
  return entry == NO_MESSAGE and 0 or #entry
end

local function text_of(entry)
  return entry == NO_MESSAGE and '\0\0\0\0' or struct.pack('<I4', #entry) .. entry
end

-- The bytes of the messages in the queue.
local function bytes_of(session)
  return session.list_bytes or #session.queue - 4 * session.count
end

-- The queue has changed: it has so many bytes more.
local function grow(session, bytes)
  local tenant = tenants.of(session.cid)
  if tenant then
    tenants.add(tenant, bytes)
  end
  session.changed = true
end

-- A short queue is this text now, with so many entries.
local function set_queue(session, text, count)
  local before = bytes_of(session)
  session.queue, session.count = text, count
  grow(session, bytes_of(session) - before)
end

local function set_list_bytes(session, bytes)
  local more = bytes - session.list_bytes
  session.list_bytes = bytes
  grow(session, more)
end

-- The entries of a short queue.
local function entries_of(session)
  local found, at, queue = {}, 1, session.queue
  while at <= #queue do
    local size = struct.unpack('<I4', queue, at)
    found[#found + 1] = size == 0 and NO_MESSAGE or queue:sub(at + 4, at + 3 + size)
    at = at + 4 + size
  end
  return found
end

local function set_entries(session, entries)
  local texts = {}
  for i = 1, #entries do
    texts[i] = text_of(entries[i])
  end
  set_queue(session, table.concat(texts), #entries)
end

local function list_of(session)
  return session.prefix .. 'q:' .. session.cid
end

local function push_all(list, entries, first)
  local length = 0
  for i = first, #entries, AT_ONCE do
    length = redis.call('RPUSH', list, unpack(entries, i, math.min(i + AT_ONCE - 1, #entries)))
  end
  return length
end

-- The queue becomes a list.
local function begin_list(session)
  push_all(list_of(session), entries_of(session), 1)
  session.list_bytes = bytes_of(session)
  set_flag(session, LISTED, true)
  session.queue, session.count, session.changed = '', 0, true
end

-- A list has lost entries with so many bytes: it is a short queue again if it has none.
local function shrink_list(session, bytes)
  set_list_bytes(session, session.list_bytes - bytes)
  if session.list_bytes <= 0 and redis.call('EXISTS', list_of(session)) == 0 then
    set_list_bytes(session, 0)
    set_flag(session, LISTED, false)
    session.list_bytes = false
  end
end

-- The number of entries.
local function length_of(session)
  return session.list_bytes and redis.call('LLEN', list_of(session)) or session.count
end

-- Entries from one index to another, from 0.
local function slice(session, first, last)
  if session.list_bytes then
    return redis.call('LRANGE', list_of(session), first, last)
  end
  if session.count == 0 then
    return NOTHING
  end
  local found, all = {}, entries_of(session)
  for i = first + 1, last < 0 and #all or math.min(last + 1, #all) do
    found[#found + 1] = all[i]
  end
  return found
end

-- The entry with this index, or nil.
local function entry_at(session, index)
  if session.list_bytes then
    return redis.call('LINDEX', list_of(session), index) or nil
  end
  return entries_of(session)[index + 1]
end

-- Append entries from the place `first` of a list on. `added`: their bytes. Returns the length of the queue.
local function append_entries(session, entries, first, added)
  local count = #entries - first + 1
  local length, queue = session.count + count, session.queue
  if not session.list_bytes then
    if length <= MOST and #queue + added + 4 * count <= MOST_BYTES then
      for i = first, #entries do
        queue = queue .. text_of(entries[i])
      end
      session.queue, session.count = queue, length
      grow(session, added)
      return length
    end
    begin_list(session)
  end
  length = push_all(list_of(session), entries, first)
  -- If it was empty: after a loss of data a node may have acknowledged other messages.
  set_list_bytes(session, length == count and added or session.list_bytes + added)
  return length
end

-- Remove the first entries. `size`: their bytes, if the caller knows them; else those of a list are read, and Lua
-- hashes each byte.
local function drop_first(session, count, size)
  if count <= 0 then
    return
  end
  if not session.list_bytes then
    local at, dropped = 1, math.min(count, session.count)
    for _ = 1, dropped do
      at = at + 4 + struct.unpack('<I4', session.queue, at)
    end
    set_queue(session, session.queue:sub(at), session.count - dropped)
    return
  end
  if size then
    redis.call('LTRIM', list_of(session), count, -1)
  else
    size = 0
    for _, entry in ipairs(redis.call('LPOP', list_of(session), count) or NOTHING) do
      size = size + size_of(entry)
    end
  end
  shrink_list(session, size)
end

-- Remove the last entries.
local function drop_last(session, count)
  if count <= 0 then
    return
  end
  if not session.list_bytes then
    local entries = entries_of(session)
    for _ = 1, math.min(count, #entries) do
      entries[#entries] = nil
    end
    set_entries(session, entries)
    return
  end
  local size = 0
  for _, entry in ipairs(redis.call('RPOP', list_of(session), count) or NOTHING) do
    size = size + size_of(entry)
  end
  shrink_list(session, size)
end

-- Remove the entries with these indices, which rise; at least one. `size`: their bytes, if the caller knows them.
local function remove(session, indices, size)
  if not session.list_bytes then
    local entries = entries_of(session)
    for i = #indices, 1, -1 do
      table.remove(entries, indices[i] + 1)
    end
    set_entries(session, entries)
    return
  end
  local list, read = list_of(session), 0
  local is_near = indices[#indices] < redis.call('LLEN', list) / 2      -- to the beginning
  for i = 1, #indices do
    read = read + (size and 0 or size_of(redis.call('LINDEX', list, indices[i])))
    redis.call('LSET', list, indices[i], '')
  end
  redis.call('LREM', list, is_near and #indices or -#indices, '')
  shrink_list(session, size or read)
end

-- The message of the entry with this index is not needed any more. `size`: its bytes, if the caller knows them.
local function clear(session, index, size)
  if not session.list_bytes then
    local entries = entries_of(session)
    if entries[index + 1] then
      entries[index + 1] = NO_MESSAGE
      set_entries(session, entries)
    end
    return
  end
  size = size or size_of(redis.call('LINDEX', list_of(session), index) or NO_MESSAGE)
  if size > 0 and redis.pcall('LSET', list_of(session), index, NO_MESSAGE).ok then
    set_list_bytes(session, session.list_bytes - size)
  end
end

-- ---- plain sessions ----

-- Whether a session is plain, and has not this flag.
local function is_plain(session, flag)
  return session.flags < LISTED and not has(session, flag)
end

-- Append a message to the queue of a session of this incarnation that stays plain, with so many messages and bytes at
-- most. Returns its number, and the owner; nil: the session is not like this, and nothing has changed.
function packed_sessions.append_plain(cid, incarnation, message, most, most_bytes)
  local text = call.sessions[cid]
  if type(text) ~= 'string' then
    return nil
  end
  local head, its_incarnation, _, _, flags, length = struct.unpack(FIELDS, text)
  local size, queue = #text - FIELDS_SIZE - length, FIELDS_SIZE + 1 + length
  local count = size > 0 and count_entries(text, queue) or 0
  if its_incarnation ~= incarnation or flags >= LISTED or count >= math.min(MOST, most)
      or size + 4 + #message > MOST_BYTES or size + #message > most_bytes then
    return nil
  end
  call.sessions[cid], call.changed[cid] = text .. struct.pack('<I4', #message) .. message, true
  local tenant = tenants.of(cid)
  if tenant then
    tenants.add(tenant, #message)
  end
  return head + count, (struct.unpack('Bc0', text, FIELDS_SIZE + 1))
end

-- Entries of the queue of a plain session are done. Returns whether it is one, and these are its first entries.
function packed_sessions.drop_plain(cid, incarnation, first, count)
  local text = call.sessions[cid]
  if type(text) ~= 'string' then
    return false
  end
  local head, its_incarnation, marks, _, flags, length = struct.unpack(FIELDS, text)
  if its_incarnation ~= incarnation or flags >= LISTED or marks > 0 or first ~= head then
    return false
  end
  local queue = FIELDS_SIZE + 1 + length
  local at = queue
  for _ = 1, count do
    if at > #text then
      return false
    end
    at = at + 4 + struct.unpack('<I4', text, at)
  end
  local rest = at > #text and text:sub(9, queue - 1) or text:sub(9, queue - 1) .. text:sub(at)
  call.sessions[cid], call.changed[cid] = struct.pack('<d', head + count) .. rest, true
  local tenant = tenants.of(cid)
  if tenant then
    tenants.add(tenant, queue + 4 * count - at)
  end
  return true
end

packed_sessions.FLAGS = FLAGS
packed_sessions.bytes_of = bytes_of
packed_sessions.append_entries = append_entries
packed_sessions.clear = clear
packed_sessions.drop_first = drop_first
packed_sessions.drop_last = drop_last
packed_sessions.entry_at = entry_at
packed_sessions.has = has
packed_sessions.is_plain = is_plain
packed_sessions.length_of = length_of
packed_sessions.rare = rare
packed_sessions.remove = remove
packed_sessions.set_flag = set_flag
packed_sessions.set_rare = set_rare
packed_sessions.size_of = size_of
packed_sessions.slice = slice
return packed_sessions
