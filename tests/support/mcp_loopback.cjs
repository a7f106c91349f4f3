// Let whatever listens in this process listen on loopback alone, and tell the port on RATH_PORT_FD.
const fs = require("node:fs");
const net = require("node:net");

const listen = net.Server.prototype.listen;

net.Server.prototype.listen = function (port, ...rest) {
  this.once("listening", () => {
    const told = Number(process.env.RATH_PORT_FD);
    fs.writeSync(told, `${this.address().port}\n`);
    fs.closeSync(told);
  });
  const done = rest.find((each) => typeof each === "function");
  return listen.call(this, { port: Number(port), host: "127.0.0.1" }, done);
};
