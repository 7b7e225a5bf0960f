#!lua name=flockmq1
-- revision 1
-- The function library of a cluster: its atomic steps. Every node loads it into Redis when it starts. The protocol is
-- in deploy/docs/CLUSTER.md.
--
-- A node joins the files to one library, in the order of FUNCTION_FILES (cluster/redis/connector.py): a local of one
-- file is visible in the files after it, and Lua allows 200 of them.
--
-- cluster/redis/calls.py has the meaning, the arguments and the reply of each function. The first argument is the key
-- prefix. In a Redis Cluster callers declare one key, the bare hash tag of the prefix. It never exists: so the server
-- replies MOVED or ASK instead of running the function, whenever not all keys of the slot are there. Functions that
-- change state check that the caller is a live node: a node that was declared dead gets {'gone'}, and the function
-- changes nothing. Messages between nodes are MessagePack arrays; the first element is the kind.

local KEPT_CHANGES = 100000   -- entries of the stream of changes: a node that is further behind rejoins
local AT_ONCE = 1000          -- values per command: Lua's stack is small
local AT_ONCE_BYTES = 524288  -- of messages in one reply: Redis disconnects a subscriber with 32 MB of pending output
local PROGRESS = 0x60         -- first byte of the progress before an awaited message whose publication is under way
local FLAP_SECONDS = 10       -- take-overs of a session within this time of each other count as a fight

local MOST_ARGUMENTS = 12     -- of a function, but for the messages of `commit`
local arguments = {}          -- of this call
local sharded = false         -- whether the caller declared a key: channels are sharded then
local timed = false           -- whether this call has looked at the clock for `noted_tails`
local woken = {}              -- groups in which this call gave members room: what waits there goes to them at its end
local tenants = {}            -- functions, below; and what this call has changed, and has read, by tenant
local damaged = {}            -- not applied by this call: 'client', 'group' or 'common', name, key, reason, in turn

-- Register a function. `flags`: of Redis. `call` gets the arguments that cluster/redis/calls.py lists, one by one.
local function register(name, flags, call)
  local function callback(keys, args)
    sharded, timed, arguments = keys[1] ~= nil, false, args
    if damaged[1] then
      damaged = {}
    end
    if next(woken) then
      woken = {}
    end
    tenants.changes, tenants.sums = nil, nil
    local result = call(unpack(args, 1, MOST_ARGUMENTS))
    if tenants.changes then
      tenants.write(args[1])
    end
    return result
  end
  redis.register_function({function_name = 'flockmq_' .. name, flags = flags, callback = callback})
end

local function publish(channel, message)
  redis.call(sharded and 'SPUBLISH' or 'PUBLISH', channel, message)
end

-- Damaged keys. Redis does not undo what a function did before an error, so no error may leave a function after its
-- first write. What all depends on is checked before that. Each step for a client or a group is one of its own: if it
-- fails, as its keys have a wrong type or content, it is noted in `damaged`, and the others are applied.

local CLIENT = {kind = 'client', 's:', 'hash', 'q:', 'list', 'st:', 'hash', 'in:', 'hash', 'subs:', 'hash'}
local GROUP = {kind = 'group', 'g:', 'hash', 'gs:', 'set', 'gw:', 'list', 'gq:', 'zset', 'gm:', 'hash', 'gr:', 'zset',
  'go:', 'hash', 'gk:', 'hash', 'gv:', 'hash'}
local COMMON = {'sessions', 'zset', 'expiring', 'zset', 'grace', 'zset', 'left', 'zset', 'delayed', 'zset',
  'delayed:wills', 'hash', 'clock', 'hash', 'epoch', 'string', 'change', 'string', 'changes', 'stream',
  'shared', 'hash', 'groups', 'hash', 'nodes', 'hash', 'queued:tenants', 'hash'}

-- The first key with a wrong type, and a sentence on it; or nil. `keys`: names and types in turn; `of`: what follows
-- each.
local function wrong_key(prefix, keys, of)
  for i = 1, #keys, 2 do
    local key = prefix .. keys[i] .. of
    local found = redis.call('TYPE', key).ok
    if found ~= 'none' and found ~= keys[i + 1] then
      return key, 'WRONGTYPE its type is ' .. found .. ' instead of ' .. keys[i + 1]
    end
  end
end

-- The error for a key without which nothing of a call can be applied. Nothing has been written.
local function refusal(key, reason)
  return redis.error_reply('DAMAGED ' .. key .. ': ' .. reason)
end

-- A step for a client or a group has failed, with this error.
local function note_damage(prefix, kinds, name, reason)
  reason = type(reason) == 'table' and reason.err or tostring(reason)
  local key, sentence = wrong_key(prefix, kinds, name)
  if not key then
    key, sentence = wrong_key(prefix, COMMON, '')
  end
  key, reason = key or prefix .. kinds[1] .. name, sentence or reason
  for _, value in ipairs({kinds.kind, name, key, reason}) do
    damaged[#damaged + 1] = value
  end
  redis.log(redis.LOG_WARNING, 'FlockMQ found a damaged key, ' .. key .. ': ' .. reason)
end

-- Call `step` for a client or a group. Returns whether it has not failed, and its result.
local function attempt(prefix, kinds, name, step, ...)
  local fine, result = pcall(step, ...)
  if not fine then
    note_damage(prefix, kinds, name, result)
  end
  return fine, result
end

local NOTHING = {}

local function run(step, job)
  while job.at < job.count do
    job.at = job.at + 1
    step(job.at, job)
  end
end

-- Call `step` with the numbers from 1 to `count`, and with the table `job`. If it fails, call `failed` with the number,
-- the error and `job`, and go on with the next one. (One pcall for all costs less than one for each. In calls for each
-- message `step` is no closure: to make one takes as long as a command of Redis.)
local function each(count, step, failed, job)
  job = job or {}
  job.at, job.count = 0, count
  while job.at < count do
    local fine, reason = pcall(run, step, job)
    if not fine then
      failed(job.at, reason, job)
    end
  end
end

-- For `each`: an item of `job.list`, which begins with a client id, has failed.
local function client_failed(i, reason, job)
  note_damage(job.prefix, CLIENT, job.list[i][1], reason)
end

-- Append values to a list in a table of lists.
local function append(lists, key, ...)
  local list = lists[key] or {}
  lists[key] = list
  for i = 1, select('#', ...) do
    list[#list + 1] = (select(i, ...))
  end
end

-- Call a command for many arguments, some at a time: unpacking needs room on Lua's stack. `each`: arguments that belong
-- together. Returns the replies of one list after the other.
local function in_parts(command, key, arguments, each)
  local result = {}
  local step = AT_ONCE - AT_ONCE % (each or 1)
  for i = 1, #arguments, step do
    local found = redis.call(command, key, unpack(arguments, i, math.min(i + step - 1, #arguments)))
    if type(found) == 'table' then
      for j = 1, #found do
        result[i + j - 1] = found[j]
      end
    end
  end
  return result
end

local function live(prefix, node)
  return redis.call('HEXISTS', prefix .. 'nodes', node) == 1
end

-- The number of a live node's last commit; nil if it is dead, or its description is damaged: it has to rejoin.
local function seq_of(prefix, node)
  local key = prefix .. 'node:' .. node
  local last = redis.pcall('HGET', key, 'seq')
  if last and not tonumber(last) then
    redis.log(redis.LOG_WARNING, 'FlockMQ found a damaged key, ' .. key .. ': ' .. (last.err or 'seq is no number'))
  end
  return tonumber(last)
end

-- Count a call of a node that is no commit, and that would be missed: a node whose link is back compares this with the
-- replies that it has had. The call takes effect also if the count is damaged.
local function count_call(prefix, node)
  redis.pcall('HINCRBY', prefix .. 'node:' .. node, 'calls', 1)
end

-- The wall clock of Redis in milliseconds.
local function wall()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local CLOCK_AHEAD = 3000      -- milliseconds: how far the clock runs ahead of the last heartbeat
local NEVER = '4294967295'    -- a Session Expiry Interval
local LATE = 9007199254740991 -- score of a session whose end is not decided by how long it has been offline

-- The clock of the cluster, in milliseconds. It is that of the last heartbeat, plus the time since then by the wall
-- clock, within bounds: steps of the wall clock and a promoted replica don't move it.
local function clock(prefix)
  local state = redis.call('HMGET', prefix .. 'clock', 't', 'w')
  if not state[1] then
    return wall()
  end
  return tonumber(state[1]) + math.min(math.max(wall() - tonumber(state[2]), 0), CLOCK_AHEAD)
end

-- The same in seconds.
local function now(prefix)
  return math.floor(clock(prefix) / 1000)
end

-- A process of Redis may begin with less than the nodes have seen: a replica that was behind, a disk that was. Numbers
-- of queues and places of groups are then used again. So a new process notes where each queue ended before its first
-- push, and each group. A node that comes back compares its own numbers with that, not with the queue of now, which
-- other nodes may have filled again. These are variables of the process, not keys: a promoted replica has none, since
-- it has executed no function.
local TAILS = 120000          -- milliseconds for which it notes them: after that no node still has clients of before
local MAX_TAILS = 20000
local born, noted = {}, 0     -- `born`: by prefix, the time of the first call
local tails = {}              -- key of a session or group -> {incarnation or 0, end}; nil: nothing is noted any more
local known = {}              -- prefix and id of nodes that joined with this process, or compared their numbers with it

-- The processes of Redis that nodes have used are counted. A node for which more than one has begun can't compare: what
-- the earlier of them has noted is gone.
local starts = {
  of = {},                    -- by prefix: the number of this process, or an error
  found = {},                 -- by prefix: whether there were sessions or delayed wills when it was counted
  rest_ends = {},             -- by prefix, by the clock of the cluster
  REST = 10000,               -- milliseconds
}

-- The number of this process.
function starts.count(prefix)
  if not starts.of[prefix] then
    starts.of[prefix] = redis.pcall('INCR', prefix .. 'starts')
    starts.found[prefix] = redis.call('EXISTS', prefix .. 'sessions', prefix .. 'delayed') > 0
  end
  return tonumber(starts.of[prefix]) or 0
end

-- Whether processes have begun and ended since the last ordinary heartbeat of a node; not, if a key is damaged.
function starts.are_missed(prefix, node)
  local seen = redis.pcall('HGET', prefix .. 'node:' .. node, 'starts')
  return (tonumber(starts.of[prefix]) or 0) > (tonumber(seen) or math.huge) + 1
end

-- A process that finds sessions of an earlier one may lack claims of clients that are connected. It ends no session,
-- and hands out no delayed will, until their nodes have noticed that, and they have claimed their sessions again.
-- `time`: by the clock of the cluster, which the first heartbeat brings up to date.
function starts.begin_rest(prefix, time)
  if starts.found[prefix] and not starts.rest_ends[prefix] then
    starts.rest_ends[prefix] = time + starts.REST
  end
end

-- Whether this process rests at this time.
function starts.rests(prefix, time)
  return time < (starts.rest_ends[prefix] or 0)
end

-- The table of the noted ends; nil if there is none any more.
local function noted_tails(prefix)
  if tails and not timed then
    local fine, time = pcall(clock, prefix)        -- it may be damaged
    timed, born[prefix] = true, born[prefix] or fine and time
    if fine and time - born[prefix] > TAILS then
      tails, known = nil, nil
    end
  end
  return tails
end

local function note_tail(key, incarnation, tail)
  if not tails[key] and noted < MAX_TAILS then
    tails[key] = {incarnation, tail}
    noted = noted + 1
  end
end

-- Where a queue ended when this process began, or where it ends, if that is less: a node that has not compared its
-- numbers with this process may have had other messages from there on.
local function common_end(prefix, node, cid, incarnation, head)
  local tail = head + redis.call('LLEN', prefix .. 'q:' .. cid)
  local before = noted_tails(prefix) and not known[prefix .. node] and tails[prefix .. 's:' .. cid]
  return before and before[1] == incarnation and math.min(tail, before[2]) or tail
end

local function tell(prefix, node, ...)
  publish(prefix .. 'to:' .. node, cmsgpack.pack({...}))
end

-- Large messages that are to be sent to a node: publish them before the list that has them (from its element `first`
-- on), with `false` in their places. As a part of another text each byte would be hashed once more: 1.5 us for a KiB,
-- while PUBLISH takes 1 us.
local LARGE = 1024
local function send_apart(prefix, node, list, first)
  for i = first, #list do
    if #list[i] >= LARGE then
      publish(prefix .. 'to:' .. node, list[i])
      list[i] = false
    end
  end
end

-- A will, or a message that waits for its time: progress u32, 0 = its publication has not begun; delay in seconds u32;
-- bytes of the client id u16; bytes of the author u16; client id; author; message.
local wills = {HEAD = 12}

function wills.pack(cid, message)
  return struct.pack('<I4I4HH', 0, 0, #cid, 0) .. cid .. message
end

-- The delay, and the bytes of the client id and of the author. A damaged will may be shorter.
local function head_of(will)
  if #will < wills.HEAD then
    return 0, 0, 0
  end
  return struct.unpack('<I4HH', will, 5)
end

function wills.client_of(will)
  local _, client = head_of(will)
  return will:sub(wills.HEAD + 1, wills.HEAD + client)
end

-- The Will Delay Interval in seconds.
function wills.delay_of(will)
  return (head_of(will))
end

-- Where the message begins.
function wills.message_of(will)
  local _, client, author = head_of(will)
  return wills.HEAD + 1 + client + author
end

function wills.with_progress(will, progress)
  return struct.pack('<I4', progress) .. will:sub(5)
end

function wills.without_delay(will)
  return will:sub(1, 4) .. struct.pack('<I4', 0) .. will:sub(9)
end

-- Where the topic name of a message begins, and where it ends. `at`: of the message.
local function topic_place(message, at)
  local flags, length = struct.unpack('<BH', message, at)
  local head = 3
  if math.floor(flags / 16) == 2 then              -- with properties, perhaps with a deadline
    head = math.floor(flags / 8) % 2 == 1 and 15 or 7
  end
  return at + head, at + head + length - 1
end

-- The time in which no node lived counts, by the wall clock of Redis: nothing better is known. A node that joins may
-- find nodes that have ended without leaving. Then the fields `off` and `of` of the clock have the time since the last
-- heartbeat, and those nodes. When all of them have been declared dead, it counts. If one sends a heartbeat, the time
-- that this node has measured counts instead: a step of the wall clock must end nothing while nodes live.
local outage = {MOST = 31622400000}                 -- milliseconds that count: a year

-- Set the clock forward by the time since the last heartbeat, at most by `most` milliseconds. `node`: of the heartbeat.
local function advance_clock(prefix, most, node)
  local time = wall()
  local state = redis.call('HMGET', prefix .. 'clock', 't', 'w', 'off', 'of')
  local value = time
  if state[1] then
    local passed = math.max(time - tonumber(state[2]), 0)
    if state[3] and node and state[4]:find(' ' .. node .. ' ', 1, true) then
      passed = passed + tonumber(state[3])
      redis.call('HDEL', prefix .. 'clock', 'off', 'of')
    end
    value = tonumber(state[1]) + math.min(passed, most)
  end
  redis.call('HSET', prefix .. 'clock', 't', string.format('%.0f', value), 'w', string.format('%.0f', time))
  return value
end

-- A node joins. `others`: the nodes that have not left. Returns the milliseconds that count at once.
function outage.begin(prefix, others)
  local state = redis.call('HMGET', prefix .. 'clock', 't', 'w', 'off', 'of')
  local passed = state[1] and math.min(math.max(wall() - tonumber(state[2]), 0), outage.MOST) or 0
  if #others == 0 then
    advance_clock(prefix, outage.MOST)
    return passed
  end
  if passed > CLOCK_AHEAD then
    local nodes = state[4] or ' '
    for _, node in ipairs(others) do
      if not nodes:find(' ' .. node .. ' ', 1, true) then
        nodes = nodes .. node .. ' '
      end
    end
    redis.call('HSET', prefix .. 'clock', 'off', string.format('%.0f', passed + tonumber(state[3] or 0)), 'of', nodes,
      'w', string.format('%.0f', wall()))
  end
  return 0
end

-- A node has ended. `is_dead`: it was declared dead; else it has left, so it has lived.
function outage.lose(prefix, node, is_dead)
  local state = redis.call('HMGET', prefix .. 'clock', 't', 'off', 'of')
  if not state[2] or not state[3]:find(' ' .. node .. ' ', 1, true) then
    return
  end
  local first, last = state[3]:find(' ' .. node .. ' ', 1, true)
  local nodes = state[3]:sub(1, first) .. state[3]:sub(last + 1)
  if is_dead and nodes ~= ' ' then
    redis.call('HSET', prefix .. 'clock', 'of', nodes)
    return
  end
  redis.call('HDEL', prefix .. 'clock', 'off', 'of')
  if is_dead then
    local passed = math.min(tonumber(state[2]), outage.MOST)
    redis.call('HSET', prefix .. 'clock', 't', string.format('%.0f', tonumber(state[1]) + passed))
    -- What this process waits for is no part of it.
    starts.rest_ends[prefix] = starts.rest_ends[prefix] and starts.rest_ends[prefix] + passed
    born[prefix] = born[prefix] and born[prefix] + passed
  end
end

-- Begin to count the time of a session without a connection. `interval`: in seconds; '' = as the nodes are configured.
local function begin_expiry(prefix, cid, interval)
  redis.call('ZADD', prefix .. 'sessions', interval == '' and now(prefix) or LATE, cid)
  if interval ~= '' and interval ~= NEVER then
    redis.call('ZADD', prefix .. 'expiring', string.format('%.0f', clock(prefix) + tonumber(interval) * 1000), cid)
  end
end

-- A mark for a change that a function makes, as a record. Two changes with the same number, before and after a failover
-- that lost the first, have different ones. (The random numbers of Lua are the same in each Redis; the time is not.)
local function mark()
  local time = redis.call('TIME')
  return {'mark', tonumber(time[1]) * 1000000 + tonumber(time[2])}
end

-- Number the changes of a block, append them to the stream, publish them to every node. `kept` is the entry of the
-- stream; it lacks the retained messages, which the hash holds.
local function change(prefix, origin, block, kept)
  local number = redis.call('INCR', prefix .. 'change')
  redis.call('XADD', prefix .. 'changes', 'MAXLEN', '~', KEPT_CHANGES, string.format('%.0f-0', number), 'o', origin,
    'b', kept or block)
  publish(prefix .. 'all', cmsgpack.pack({'changes', number, origin, block}))
  return number
end

-- The bytes of messages in the queues of each tenant: sessions and groups in Redis, and what nodes have themselves. The
-- hash `queued:tenants` has their sum, by the prefix `$tenant/NAME/`; a call writes it once. The part of a session or a
-- group is its field `c`, in place of `b`; that of a node is in `queued:<id>`.

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
  local changes = tenants.changes or {}
  tenants.changes = changes
  changes[tenant] = (changes[tenant] or 0) + change
end

-- The bytes of a tenant.
function tenants.total(prefix, tenant)
  local sums, changes = tenants.sums or {}, tenants.changes or NOTHING
  tenants.sums = sums
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
  local key = prefix .. 'queued:tenants'
  for tenant, change in pairs(tenants.changes or NOTHING) do
    local bytes = change ~= 0 and redis.pcall('HINCRBY', key, tenant, change) or 1
    if type(bytes) == 'table' then
      redis.log(redis.LOG_WARNING, 'FlockMQ found a damaged key, ' .. key .. ': ' .. bytes.err)
    elseif bytes < 0 then
      redis.call('HDEL', key, tenant)
    end
  end
  tenants.changes, tenants.sums = nil, nil
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

local wake                    -- in members.lua: a member's queue is shorter, so it may have room
local give_back               -- in shares.lua: messages in a session's queue go back to their groups
local leave_groups            -- likewise: a session that ends leaves its groups

-- The delayed will of an ended connection is held while a later one has claimed the session: if its client is never
-- admitted, the will waits again. The will is in `delayed:wills`; the field `held` of the session has its epoch and the
-- time at which it is due. The node that admits the client settles it; the field stays until that connection ends.
local held = {}

-- The epoch and the time in a field; nil: no will is held.
function held.parts(field)
  local epoch, due = (type(field) == 'string' and field or ''):match('^(%d+) (%S+)$')
  return tonumber(epoch), due
end

-- Hold a will, unless that of a later connection is held. `due`: a text.
function held.hold(prefix, cid, epoch, due)
  local of = held.parts(redis.call('HGET', prefix .. 's:' .. cid, 'held'))
  if of and of > epoch then
    redis.call('HDEL', prefix .. 'delayed:wills', string.format('%.0f', epoch))
  else
    held.drop(prefix, cid, epoch)
    redis.call('HSET', prefix .. 's:' .. cid, 'held', string.format('%.0f ', epoch) .. due)
  end
end

-- A connection before which the will of the session was held may have been admitted: drop the will. `epoch`: of that
-- connection; nil: the session ends.
function held.drop(prefix, cid, epoch)
  local key = prefix .. 's:' .. cid
  local of = held.parts(redis.pcall('HGET', key, 'held'))
  if of and of < (epoch or math.huge) then
    redis.call('HDEL', key, 'held')
    redis.call('HDEL', prefix .. 'delayed:wills', string.format('%.0f', of))
  end
end

-- The session ends: the will is due, unless a later connection may have been admitted.
function held.finish(prefix, cid)
  local key = prefix .. 's:' .. cid
  local state = redis.pcall('HMGET', key, 'held', 'o', 'w')
  local epoch = held.parts(state[1])
  if not epoch then
    return
  end
  local is_last = state[2] == ''
  for old in (state[3] or ''):gmatch('([^=,]+)=') do
    is_last = is_last and tonumber(old) <= epoch
  end
  if is_last then
    held.resume(prefix, cid)
  else
    held.drop(prefix, cid)
  end
end

-- The session has no connection any more, and none was admitted since the will is held: it waits again.
function held.resume(prefix, cid)
  local key = prefix .. 's:' .. cid
  local epoch, due = held.parts(redis.call('HGET', key, 'held'))
  if epoch then
    local id = string.format('%.0f', epoch)
    redis.call('HDEL', key, 'held')
    redis.call('ZADD', prefix .. 'delayed', due, id)
    redis.call('HSET', key, 'd', id)
  end
end

local function forget(prefix, cid)
  held.finish(prefix, cid)
  local delayed = redis.pcall('HGET', prefix .. 's:' .. cid, 'd')
  if type(delayed) == 'string' and delayed ~= '' then
    redis.call('ZADD', prefix .. 'delayed', 0, delayed)    -- the session ends: its will is due
  end
  redis.call('ZREM', prefix .. 'expiring', cid)
  local tenant = tenants.of(cid)
  if tenant then
    tenants.add(tenant, -(tonumber(redis.pcall('HGET', prefix .. 's:' .. cid, 'b')) or 0))
  end
  redis.call('DEL', prefix .. 's:' .. cid, prefix .. 'q:' .. cid, prefix .. 'st:' .. cid, prefix .. 'in:' .. cid,
    prefix .. 'subs:' .. cid)
  redis.call('ZREM', prefix .. 'sessions', cid)
end

-- Earlier connections of a session that their nodes have not released. Its field `w` has their epochs and nodes.
local earlier = {}

-- Those of `waits` whose nodes fit. In the same form.
function earlier.at(waits, fits)
  local found = ''
  for old, where in waits:gmatch('([^=,]+)=([^,]*),') do
    if fits(where) then
      found = found .. old .. '=' .. where .. ','
    end
  end
  return found
end

-- Those of `waits` whose nodes live: they may still be served.
function earlier.living(prefix, waits)
  return earlier.at(waits, function(node)
    return live(prefix, node)
  end)
end

-- Those of `waits` at other nodes.
function earlier.without(waits, node)
  return earlier.at(waits, function(other)
    return other ~= node
  end)
end

-- Whether one of `waits` may have sent messages, and Redis has not noted which: its node lives, or has just died.
function earlier.may_have_sent(prefix, waits)
  for where in waits:gmatch('=([^,]*),') do
    if live(prefix, where) or redis.call('SISMEMBER', prefix .. 'dead', where) == 1 then
      return true
    end
  end
  return false
end

-- The node of a connection is dead: it may have admitted the client, and have sent every message in the queue.
function earlier.has_died(prefix, cid, epoch)
  local key = prefix .. 's:' .. cid
  redis.call('HSET', key, 'n', tonumber(redis.call('HGET', key, 'h')) + redis.call('LLEN', prefix .. 'q:' .. cid))
  held.drop(prefix, cid, epoch)
end

-- A session has ended while nodes still had earlier connections of its client. The next connection has to wait for
-- them, so their epochs stay, in a session that nothing fits: its incarnation is 0.
local function keep_waits(prefix, cid, epoch, waits)
  redis.call('HSET', prefix .. 's:' .. cid, 'o', '', 'e', epoch, 'x', 0, 'p', 0, 'h', 1, 'b', 0, 'n', 1, 'z', 0,
    'w', waits)
end

-- End a session, and with it what is damaged of it. Other nodes know the subscriptions of a persistent one, so its end
-- is a change. `told`: as for `give_back`.
local function end_session(prefix, origin, cid, incarnation, persistent, told)
  if persistent == '1' then
    attempt(prefix, CLIENT, cid, give_back, prefix, cid, true, told)
    attempt(prefix, CLIENT, cid, leave_groups, prefix, cid)
    redis.call('ZREM', prefix .. 'grace', cid)
  end
  local left = redis.pcall('HMGET', prefix .. 's:' .. cid, 'e', 'w')
  forget(prefix, cid)
  if (left[2] or '') ~= '' then
    local waits = earlier.living(prefix, left[2])
    if waits ~= '' then
      keep_waits(prefix, cid, left[1], waits)
    end
  end
  if persistent == '1' then
    return change(prefix, origin, cmsgpack.pack({{'ended', cid, tonumber(incarnation)}, mark()}))
  end
  return 0
end

-- Why an entry can't be added to the log of messages: 'again', the log has it; 'gap', the log lacks the entry before
-- it. nil if it can be added. An entry's id counts the bytes of all blocks up to its own.
local function log_obstacle(prefix, node, id, block)
  local logged = tonumber(redis.call('HGET', prefix .. 'node:' .. node, 'logged') or 0)
  local total = tonumber(id:match('%d+$'))
  if total <= logged then
    return 'again'
  end
  if total - #block ~= logged then
    return 'gap'
  end
end

-- Add an entry. Returns an error if the log is damaged; then nothing has been written.
local function add_log_entry(prefix, node, id, block, oldest)
  local key = prefix .. 'analytics:log:' .. node
  local added = redis.pcall('XADD', key, 'MINID', '~', oldest, id, 'b', block)
  if type(added) == 'table' and added.err then
    return refusal(key, added.err)
  end
  redis.call('HSET', prefix .. 'node:' .. node, 'logged', id:match('%d+$'))
end
