// Starts `evt lsp` for .evt files.
const vscode = require("vscode");
const { LanguageClient } = require("vscode-languageclient/node");

let client;

exports.activate = function () {
  const [command, ...args] = vscode.workspace.getConfiguration("evt").get("command");
  const selector = [{ language: "evt" }];
  client = new LanguageClient("evt", "evt", { command, args }, { documentSelector: selector });
  return client.start();
};

exports.deactivate = () => client?.stop();
