// Conversations, kept in this browser alone.

const STORED = "fourleaf.chats";
const KEPT = 50;

export class History {
  constructor() {
    try {
      this.chats = JSON.parse(localStorage.getItem(STORED) ?? "[]");
    } catch {
      this.chats = [];
    }
  }

  get(id) {
    return this.chats.find((chat) => chat.id === id);
  }

  /** Keeps a conversation as the latest. Old ones go where the browser's room is used up. */
  save(chat) {
    this.chats = [chat, ...this.chats.filter((one) => one.id !== chat.id)].slice(0, KEPT);
    while (this.chats.length) {
      try {
        localStorage.setItem(STORED, JSON.stringify(this.chats));
        return;
      } catch {
        this.chats.pop();
      }
    }
  }

  remove(id) {
    this.chats = this.chats.filter((chat) => chat.id !== id);
    localStorage.setItem(STORED, JSON.stringify(this.chats));
  }

  clear() {
    this.chats = [];
    localStorage.removeItem(STORED);
  }
}

export const blank = () => ({ id: crypto.randomUUID(), title: "", system: "", messages: [] });
