-- The state that a node commits at the end of a turn.

local call, publish, register, NOTHING = library.call, library.publish, library.register, library.NOTHING
local attempt, client_failed, each, refusal = damage.attempt, damage.client_failed, damage.each, damage.refusal
local wrong_key = damage.wrong_key
local seq_of = nodes.seq_of
local FLAGS, read = packed_sessions.FLAGS, packed_sessions.read
local session_of, set_flag = packed_sessions.of, packed_sessions.set_flag
local PROGRESS = wills.PROGRESS
local new_outbox, send_outbox = subscribers.new_outbox, subscribers.send_outbox
local dispatch_all = assignments.dispatch_all
local share = shared_publishes.share
local check_keys, move = transfers.check_keys, transfers.move
local delay_messages = delayed.delay_messages
local add_log_entry, log_obstacle = log.add_log_entry, log.log_obstacle
local push = queue_appends.push
local apply = records.apply
local release_all = disconnects.release_all

-- The session of a client, if it has this incarnation.
local function living(prefix, cid, incarnation)
  local session = session_of(prefix, cid)
  return session and session.incarnation == incarnation and session or nil
end

-- A QoS 2 message is received, and awaits PUBREL; or it is released, and a part of its receivers have it.
local function await(i, job)
  local item = job.list[i]
  local session = living(job.prefix, item[1], item[2])
  if session then
    local message = job.messages[item[4]]
    if item[6] then
      message = string.char(wills.NUMBERED) .. item[6] .. message
    end
    if item[5] > 0 then
      message = struct.pack('<BI4', PROGRESS, item[5]) .. message
    end
    redis.call('HSET', job.prefix .. 'in:' .. item[1], item[3], message)
    set_flag(session, FLAGS.AWAITED, true)
  end
end

-- PUBREL is received.
local function await_no_more(i, job)
  local item = job.list[i]
  if living(job.prefix, item[1], item[2]) then
    redis.call('HDEL', job.prefix .. 'in:' .. item[1], item[3])
  end
end

-- 'settled': a will is published, or discarded; 'progress': a part of its receivers have it; 'dropped': it is held, and
-- its client is admitted.
local function settle_will(prefix, node, step, epoch, progress)
  local key, id = prefix .. 'wills:' .. node, string.format('%.0f', epoch)
  if step == 'settled' then
    redis.call('HDEL', key, id)
    redis.call('SREM', prefix .. 'later:held', id)
    redis.pcall('HDEL', prefix .. 'returning', id)
  elseif step == 'dropped' then
    redis.pcall('HDEL', prefix .. 'delayed:wills', id)
  else
    local stored = redis.call('HGET', key, id)
    if stored then
      redis.call('HSET', key, id, wills.with_progress(stored, progress))
    end
  end
end

-- The keys of a node, and those of all, that a block needs beside those of clients and groups.
local CHANGES = {kind = 'common', 'changes', 'stream', 'change', 'string', 'retained', 'hash'}

local LATER = {kind = 'common', 'later', 'zset', 'later:messages', 'hash', 'later:state', 'hash',
  'later:tenants', 'hash', 'epoch', 'string'}

local ONCE = {kind = 'common', 'once', 'hash', 'once:orphans', 'set'}

-- Why nothing of a block can be applied, or nil. Reads only.
local function obstacle_of(prefix, node, has_wills, changes, has_later, has_numbers)
  local key, reason
  if has_wills then
    key, reason = wrong_key(prefix, {'wills:', 'hash'}, node)
  end
  if not key and changes ~= '' then
    key, reason = wrong_key(prefix, {'routes:', 'hash'}, node)
    if not key then
      key, reason = wrong_key(prefix, CHANGES, '')
    end
    if not key and not tonumber(redis.call('GET', prefix .. 'change') or 0) then
      key, reason = prefix .. 'change', 'its value is no number'
    end
  end
  if not key and has_numbers then
    key, reason = wrong_key(prefix, ONCE, '')
  end
  if not key and has_later then
    key, reason = wrong_key(prefix, LATER, '')
  end
  return key and refusal(key, reason)
end

-- Add a batch to the log of the node, for nodes that are away. Returns an error if the log is damaged.
local function add_batch(prefix, node, seq, targets, batch, oldest)
  local names = {}
  for i = 1, #targets do
    names[i] = targets[i][1]
  end
  local key = prefix .. 'log:' .. node
  local last = tonumber(redis.pcall('HGET', prefix .. 'clock', 'l') or 0)
  local order = string.format('%.0f', (last or 0) + 1)           -- begins again if that is damaged
  local added = redis.pcall('XADD', key, 'MINID', '~', oldest, seq .. '-0', 'b', batch,
    't', ' ' .. table.concat(names, ' ') .. ' ', 'o', order)
  if type(added) == 'table' and added.err then
    return refusal(key, added.err)
  end
  redis.pcall('HSET', prefix .. 'clock', 'l', order)
end

-- The messages, the entry and the batch are arguments, not parts of the block: unpacking copies the parts of a block,
-- and Lua hashes each byte of a new text.
register('commit', {}, function(prefix, node, seq, block, max_messages, max_bytes, drop_oldest, oldest_batch, entry_id,
    log_entry, oldest_entry, batch, acks, settled)
  local last, number = seq_of(prefix, node), tonumber(seq)
  if not last then
    return {'gone'}
  end
  if number <= last then
    return {'again'}
  end
  if number ~= last + 1 then
    return {'gap', last}
  end
  -- What may fail as a whole does so before anything is written.
  local pushes, header, targets, changes, awaiting, released, of_wills, releases, group_limits, shares, moves, closed,
    checks, later, limits, numbered, forgotten = unpack(cmsgpack.unpack(block))
  local messages = call.arguments
  local obstacle = entry_id ~= '' and log_obstacle(prefix, node, entry_id, log_entry)
  if obstacle == 'gap' then
    return {'gap', last}
  end
  limits = limits[1] and tenants.limits(limits)
  local records = changes ~= '' and cmsgpack.unpack(changes)
  acks, settled = acks ~= '' and cmsgpack.unpack(acks), settled ~= '' and cmsgpack.unpack(settled)
  local refused = obstacle_of(prefix, node, of_wills[1], changes, later[1] or numbered[1],
    numbered[1] or forgotten[1])
  if not refused and entry_id ~= '' and not obstacle then
    refused = add_log_entry(prefix, node, entry_id, log_entry, oldest_entry)
  end
  if not refused and batch ~= '' then
    refused = add_batch(prefix, node, seq, targets, batch, oldest_batch)
  end
  if refused then
    return refused
  end
  redis.call('HSET', prefix .. 'node:' .. node, 'seq', number)
  once.forget(prefix, node, forgotten)
  local known, all = NOTHING, records
  if numbered[1] then
    known, records = once.give(prefix, node, numbered, pushes, shares, later, records)
    changes = records ~= all and cmsgpack.pack(records) or changes
  end
  local outbox = new_outbox()
  for _, list in ipairs({pushes, awaiting, released, releases}) do
    read(prefix, list)
  end
  local numbers, dropped, full, expired, number_of_change = {}, 0, NOTHING, 0, 0
  -- First of all: the node that gets a session which this block releases must see them.
  local roomy = acknowledgements.apply(prefix, node, acks, settled, outbox)
  if awaiting[1] then
    each(#awaiting, await, client_failed, {prefix = prefix, list = awaiting, messages = messages})
  end
  if released[1] then
    each(#released, await_no_more, client_failed, {prefix = prefix, list = released})
  end
  for i = 1, #of_wills, 3 do
    settle_will(prefix, node, unpack(of_wills, i, i + 2))
  end
  local waiting = NOTHING
  if moves[1] or closed[1] then
    waiting = move(prefix, node, messages, moves, closed, outbox)
  end
  if pushes[1] then
    dropped, full, expired = push(prefix, node, messages, pushes, tonumber(max_messages), tonumber(max_bytes),
      drop_oldest == '1', numbers, limits)
  end
  if batch ~= '' then
    for i = 1, #targets do
      local target = targets[i]
      publish(prefix .. 'to:' .. target[1], target[2] == '' and batch or header .. target[2])
    end
  end
  if records then
    local fine, found = attempt(prefix, CHANGES, '', apply, prefix, node, changes, records)
    number_of_change = fine and found or 0
  end
  if releases[1] then
    release_all(prefix, node, releases, outbox)
  end
  -- Now: the numbers of messages of groups follow the numbers of `pushes`.
  dispatch_all(prefix, waiting, outbox)
  dispatch_all(prefix, roomy, outbox)
  dispatch_all(prefix, call.woken, outbox)
  if shares[1] then
    local more_dropped, more_expired = share(prefix, messages, shares, group_limits, outbox, limits)
    dropped, expired = dropped + more_dropped, expired + more_expired
  end
  if later[1] then
    attempt(prefix, LATER, '', delay_messages, prefix, messages, later)
  end
  local assignments, totals, given = send_outbox(prefix, node, outbox)
  if checks[1] then
    check_keys(prefix, node, checks)
  end
  return {'ok', number_of_change, dropped, expired, numbers, full, known, assignments, totals, given, call.damaged}
end)
