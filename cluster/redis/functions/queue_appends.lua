-- Messages for the queues of sessions.

local notify, AT_ONCE, LARGE = library.notify, library.AT_ONCE, library.LARGE
local client_failed, each = damage.client_failed, damage.each
local clock = clock.clock
local note_tail, noted_tails = redis_restarts.note_tail, redis_restarts.noted_tails
local write_bytes = tenants.write_bytes
local earlier = session_ends.earlier
local part_of_group = backlog.part_of_group
local send_apart = subscribers.send_apart

-- Append the messages of the push with this number to their queue.
local function push_one(number, job)
  local prefix, node, messages, numbers = job.prefix, job.node, job.messages, job.numbers
  local most, most_bytes, drop_old = job.most, job.most_bytes, job.drop_old
  local item = job.list[number]
  local cid, incarnation = item[1], item[2]
  local key, tenant = prefix .. 's:' .. cid, tenants.of(cid)
  local state = redis.call('HMGET', key, 'o', 'x', 'h', 'b', 'z', 'm')
  local owner = state[1]
  if state[6] then
    local own, own_bytes, policy = string.match(state[6], '^(%d+) (%d+) ([01])$')
    if own then
      most, most_bytes, drop_old = tonumber(own), tonumber(own_bytes), policy == '1'
    end
  end
  local first, count, dropped = 0, #item - 2, 0
  if state[2] and tonumber(state[2]) == incarnation then
    local queue = prefix .. 'q:' .. cid
    local head, marks = state[3] + 0, state[5] + 0                           -- fails before the first write
    local before = (state[4]) + 0
    local quota = job.limits and before + tenants.free(prefix, job.limits, tenant) or job.unlimited
    local values, length, bytes, earliest = {}, 0, before, nil
    for i = 3, #item do
      local value = messages[item[i]]
      values[i - 2] = value
      bytes = bytes + #value
      if value:byte() >= 32 then                 -- it may expire
        local deadline = queues.deadline_of(value)
        earliest = deadline and (not earliest or deadline < earliest) and deadline or earliest
      end
    end
    local added = bytes - before
    for i = 1, #values, AT_ONCE do
      length = redis.call('RPUSH', queue, unpack(values, i, math.min(i + AT_ONCE - 1, #values)))
    end
    if length == #values then
      bytes = added            -- it was empty: after a loss of data a node may have acknowledged other messages
    end
    if job.notes then
      note_tail(prefix, key, incarnation, head + length - #values)
    end
    if earliest and owner == '' then
      queues.note_deadline(key, earliest)
    end
    local is_over = queues.is_over(length, bytes, most, most_bytes, quota)
    local acked = is_over and queues.done(key, marks) or 0
    if acked > 0 then
      is_over = queues.is_over(length - acked, bytes, most, most_bytes, quota)
    end
    if is_over then
      local least = #values          -- up to the last one of a group: its assignment has ended, no other would get it
      while least > 0 and not part_of_group(values[least]) do
        least = least - 1
      end
      local more = redis.call('HMGET', key, 'w', 'n', 'y', 'e')
      local kept, looks_on = math.max(more[2] - head, 0), false       -- entries that may have been sent
      local is_absent = owner == '' and not earlier.may_have_sent(prefix, more[1] or '')
      if is_absent and acked > 0 then
        local returned = queues.remove_returned(prefix, cid, head, kept, length)
        length, marks, acked = length - returned, marks - returned, acked - returned
        redis.call('HSET', key, 'z', marks, 'a', acked)
      end
      if is_absent then
        local expired, freed
        expired, freed, looks_on = queues.remove_expired(key, queue, more[3], more[4], kept, length, bytes,
          clock(prefix))
        length, bytes, job.expired = length - expired, bytes - freed, job.expired + expired
      end
      is_over = not looks_on and queues.is_over(length - acked, bytes, most, most_bytes, quota)
      if is_over and is_absent and drop_old and least == 0 then
        while length > kept and queues.is_over(length - acked, bytes, most, most_bytes, quota) do
          bytes = bytes - queues.remove(queue, kept, length)
          length, dropped = length - 1, dropped + 1
        end
        if kept == 0 then                        -- the others keep their numbers
          head = head + dropped
          redis.call('HSET', key, 'h', head)
        end
        count = math.min(count, length - kept)
      elseif is_over
          and (bytes > quota or not (drop_old and length - acked <= 2 * most and bytes <= 2 * most_bytes)) then
        while count > least and queues.is_over(length - acked, bytes, most, most_bytes, quota) do
          bytes = bytes - #redis.call('RPOP', queue)
          length = length - 1
          count = count - 1
          dropped = dropped + 1
        end
      end
    end
    write_bytes(tenant, key, before, bytes)
    if dropped > 0 then
      job.dropped = job.dropped + dropped
      job.full[#job.full + 1] = cid
      job.full[#job.full + 1] = dropped
    end
    if count > 0 then
      first = head + length - count
      if owner ~= node and owner ~= '' then
        local outbox = job.others[owner]
        if not outbox then
          outbox = {at = {}, messages = {}, items = {}, has_large = false}
          job.others[owner] = outbox
        end
        local copy = {cid, first}
        for i = #item - #values + 1, #item - #values + count do
          local index = item[i]
          if not outbox.at[index] then
            outbox.messages[#outbox.messages + 1] = messages[index]
            outbox.at[index] = #outbox.messages
          end
          copy[#copy + 1] = outbox.at[index]
        end
        outbox.items[#outbox.items + 1] = copy
        outbox.has_large = outbox.has_large or added >= LARGE * #values
      end
    end
  end
  numbers[#numbers + 1] = owner == node and first or 0
  numbers[#numbers + 1] = count
end

local function push_failed(number, reason, job)
  client_failed(number, reason, job)
  job.numbers[#job.numbers + 1] = 0
  job.numbers[#job.numbers + 1] = 0
end

-- Append messages to queues. Appends to `numbers` for each push: number of its first message (0 = the client is at
-- another node), count. `limits`: see `tenants.free`. Returns the number of dropped messages, {client id, its dropped
-- messages, ...}, and the number of messages that had expired in full queues.
local function push(prefix, node, messages, pushes, most, most_bytes, drop_old, numbers, limits)
  local job = {prefix = prefix, node = node, messages = messages, list = pushes, most = most, most_bytes = most_bytes,
    drop_old = drop_old, numbers = numbers, others = {}, dropped = 0, expired = 0, full = {},
    notes = noted_tails(prefix) ~= nil, limits = limits, unlimited = math.huge}
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
