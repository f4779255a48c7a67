// Runs Azurite, whose path is the first argument, until the input ends.
//
// What is kept in memory then ends at once. What is kept in files is closed, which saves it. Azurite
// does not wait for requests before it saves, and may acknowledge what it has not saved. So those that
// are under way are answered first, and those that come meanwhile are turned away.
'use strict';

const { Server } = require('http');

const inMemory = process.argv.includes('--inMemoryPersistence');
const emit = Server.prototype.emit;
let open = 0;
let stopping = false;

Server.prototype.emit = function (event, request, response) {
  if (event === 'request') {
    if (stopping) {
      request.socket.destroy();
      return true;
    }
    open += 1;
    response.once('close', () => {
      open -= 1;
      closeIfIdle();
    });
  }
  return emit.apply(this, arguments);
};

function closeIfIdle() {
  // Only the first signal finds somebody who listens to it.
  if (stopping && open === 0) {
    process.emit('SIGTERM');
  }
}

process.stdin.on('end', () => {
  if (inMemory || process.listenerCount('SIGTERM') === 0) {
    process.exit(0);
  }
  stopping = true;
  // For one that hangs; it ends by itself once everything is closed.
  setTimeout(() => process.exit(1), 30_000).unref();
  closeIfIdle();
}).resume();

require(process.argv[1]);
