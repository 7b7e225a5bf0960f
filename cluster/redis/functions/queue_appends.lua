-- Messages for the queues of sessions.

local notify, LARGE = library.notify, library.LARGE
local client_failed, each = damage.client_failed, damage.each
local clock = clock.clock
local note_tail, noted_tails = redis_restarts.note_tail, redis_restarts.noted_tails
local FLAGS, append_entries, bytes_of = packed_sessions.FLAGS, packed_sessions.append_entries, packed_sessions.bytes_of
local append_plain = packed_sessions.append_plain
local drop_first, drop_last = packed_sessions.drop_first, packed_sessions.drop_last
local has, length_of = packed_sessions.has, packed_sessions.length_of
local rare, remove, session_of = packed_sessions.rare, packed_sessions.remove, packed_sessions.of
local earlier = session_ends.earlier
local part_of_group = backlog.part_of_group
local send_apart = subscribers.send_apart

-- The messages of a push do not fit into the queue of their session. `limits`: messages, bytes, whether the oldest is
-- dropped; `quota`: bytes that the tenant allows. Returns how many of the new messages stay, and how many are dropped.
local function make_room(session, values, limits, quota, job)
  local most, most_bytes, drop_old = unpack(limits)
  local least, count, dropped = #values, #values, 0
  while least > 0 and not part_of_group(values[least]) do
    least = least - 1            -- up to the last one of a group: its assignment has ended, no other would get it
  end
  local function is_over()
    return queues.is_over(length_of(session) - queues.done(session), bytes_of(session), most, most_bytes, quota)
  end
  local kept, looks_on = math.max(session.sent - session.head, 0), false       -- entries that may have been sent
  local is_absent = session.owner == '' and not earlier.may_have_sent(job.prefix, session.waits)
  if is_absent then
    if queues.done(session) > 0 then
      queues.remove_returned(session, kept)
    end
    local expired
    expired, looks_on = queues.remove_expired(session, kept, clock(job.prefix))
    job.expired = job.expired + expired
  end
  if looks_on or not is_over() then
    return count, 0
  end
  if is_absent and drop_old and least == 0 then
    while length_of(session) > kept and is_over() do
      if kept > 0 then
        remove(session, {kept})
      else
        drop_first(session, 1)
      end
      dropped = dropped + 1
    end
    if kept == 0 then                            -- the others keep their numbers
      session.head = session.head + dropped
    end
    return math.min(count, length_of(session) - kept), dropped
  end
  if bytes_of(session) > quota or not (drop_old and length_of(session) - queues.done(session) <= 2 * most
      and bytes_of(session) <= 2 * most_bytes) then
    while count > least and is_over() do
      drop_last(session, 1)
      count, dropped = count - 1, dropped + 1
    end
  end
  return count, dropped
end

-- The limits of the queue of a session that may have its own.
local function own_limits(session, job)
  local most, most_bytes, policy = (rare(session, 'm') or ''):match('^(%d+) (%d+) ([01])$')
  return most and {tonumber(most), tonumber(most_bytes), policy == '1'} or job.queue_limits
end

-- Another node is to be told of messages that are in the queue of its session now.
local function tell_owner(owner, item, first, count, added, job)
  local outbox = job.others[owner]
  if not outbox then
    outbox = {at = {}, messages = {}, items = {}, has_large = false}
    job.others[owner] = outbox
  end
  local copy = {item[1], first}
  for i = 3, 2 + count do
    local index = item[i]
    if not outbox.at[index] then
      outbox.messages[#outbox.messages + 1] = job.messages[index]
      outbox.at[index] = #outbox.messages
    end
    copy[#copy + 1] = outbox.at[index]
  end
  outbox.items[#outbox.items + 1] = copy
  outbox.has_large = outbox.has_large or added >= LARGE * (#item - 2)
end

local function add_number(job, first, count)
  local at = job.count_of_numbers
  job.numbers[at + 1], job.numbers[at + 2], job.count_of_numbers = first, count, at + 2
end

-- Append a message to the queue of a plain session. Returns whether it is one.
local function push_plain(item, message, job)
  if job.limits then
    return false
  end
  local first, owner = append_plain(item[1], item[2], message, job.queue_limits[1], job.queue_limits[2])
  if not first then
    return false
  end
  if job.notes then
    note_tail(job.prefix, job.prefix .. 's:' .. item[1], item[2], first)
  end
  if owner ~= job.node and owner ~= '' then
    tell_owner(owner, item, first, 1, #message, job)
  end
  add_number(job, owner == job.node and first or 0, 1)
  return true
end

-- Append the messages of the push with this number to their queue.
local function push_one(number, job)
  local item, messages = job.list[number], job.messages
  if #item == 3 and push_plain(item, messages[item[3]], job) then
    return
  end
  local session = session_of(job.prefix, item[1])
  local first, count, owner = 0, #item - 2, session and session.owner
  if session and session.incarnation == item[2] then
    local quota = bytes_of(session) + tenants.free(job.prefix, job.limits, tenants.of(item[1]))
    local values, added, earliest = {}, 0, nil
    for i = 3, #item do
      local value = messages[item[i]]
      values[i - 2] = value
      added = added + #value
      if value:byte() >= 32 then                 -- it may expire
        local deadline = queues.deadline_of(value)
        earliest = deadline and (not earliest or deadline < earliest) and deadline or earliest
      end
    end
    local length = append_entries(session, values, 1, added)
    if job.notes then
      note_tail(job.prefix, job.prefix .. 's:' .. item[1], session.incarnation, session.head + length - count)
    end
    if earliest and owner == '' then
      queues.note_deadline(session, earliest)
    end
    local limits = has(session, FLAGS.LIMITED) and own_limits(session, job) or job.queue_limits
    if queues.is_over(length - queues.done(session), bytes_of(session), limits[1], limits[2], quota) then
      local dropped
      count, dropped = make_room(session, values, limits, quota, job)
      length = length_of(session)
      if dropped > 0 then
        job.dropped = job.dropped + dropped
        job.full[#job.full + 1] = item[1]
        job.full[#job.full + 1] = dropped
      end
    end
    if count > 0 then
      first = session.head + length - count
      if owner ~= job.node and owner ~= '' then
        tell_owner(owner, item, first, count, added, job)
      end
    end
  end
  add_number(job, owner == job.node and first or 0, count)
end

local function push_failed(number, reason, job)
  client_failed(number, reason, job)
  add_number(job, 0, 0)
end

-- Append messages to queues. Appends to `numbers` for each push: number of its first message (0 = the client is at
-- another node), count. `limits`: see `tenants.free`. Returns the number of dropped messages, {client id, its dropped
-- messages, ...}, and the number of messages that had expired in full queues.
local function push(prefix, node, messages, pushes, most, most_bytes, drop_old, numbers, limits)
  local job = {prefix = prefix, node = node, messages = messages, list = pushes,
    queue_limits = {most, most_bytes, drop_old}, numbers = numbers, others = {}, dropped = 0, expired = 0, full = {},
    count_of_numbers = #numbers, notes = noted_tails(prefix) ~= nil, limits = limits}
  each(#pushes, push_one, push_failed, job)
  for owner, outbox in pairs(job.others) do
    if outbox.has_large then
      send_apart(prefix, owner, outbox.messages, 1)
    end
    notify(prefix, owner, 'pushed', outbox.messages, outbox.items)
  end
  return job.dropped, job.full, job.expired
end

return {push = push}
