-- Wills, and messages that wait for their time, as they are kept.

local PROGRESS = 0x60         -- first byte of the progress before an awaited message whose publication is under way

local NUMBERED = 0x70         -- first byte of the number before an awaited message, with several shards

-- A will, or a message that waits for its time: progress u32, 0 = its publication has not begun; delay in seconds u32;
-- bytes of the client id u16; bytes of the author u16; client id; author; message.
local wills = {HEAD = 12}

function wills.pack(cid, message, author)
  author = author or ''
  return struct.pack('<I4I4HH', 0, 0, #cid, #author) .. cid .. author .. message
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

function wills.author_of(will)
  local _, client, author = head_of(will)
  return will:sub(wills.HEAD + client + 1, wills.HEAD + client + author)
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

wills.PROGRESS = PROGRESS
wills.NUMBERED = NUMBERED
wills.topic_place = topic_place
return wills
